"""The stack at rest: memory of all its processes (PSS: shared pages counted once), and what the agent costs."""

from __future__ import annotations

import time

import psutil

from bench.figures import Figures
from bench.stack import Bench, fresh_stack

SETTLE_S = 20.0
WATCH_S = 30.0


def measure() -> Figures:
    """Return ``total_pss_mib``, ``agent_rss_mib`` and ``agent_cpu_percent``."""
    with fresh_stack() as bench:
        bench.client.jobs.submit({"name": "first", "command": ["true"], "cpus": 0.1}).wait(60)
        bench.client.close()
        time.sleep(SETTLE_S)
        before = cpu_seconds(bench)
        time.sleep(WATCH_S)
        after = cpu_seconds(bench)
        pss = {name: sum(map(pss_mib, processes)) for name, processes in bench.processes().items()}
        agent_rss = sum(process.memory_info().rss for process in bench.processes()["agent"]) / 2**20
    cpu_percent = {name: 100 * (after[name] - before[name]) / WATCH_S for name in after}
    return Figures(
        {
            "total_pss_mib": sum(pss.values()),
            "agent_rss_mib": agent_rss,
            "agent_cpu_percent": cpu_percent["agent"],
            **{f"{name}_pss_mib": used for name, used in pss.items()},
            "total_cpu_percent": sum(cpu_percent.values()),
        },
        [f"{name:<10} {used:6.1f} MiB  {cpu_percent.get(name, 0):5.2f} % of a core" for name, used in pss.items()],
    )


def pss_mib(process: psutil.Process) -> float:
    """Return the proportional memory of one process."""
    try:
        return float(process.memory_full_info().pss) / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def cpu_seconds(bench: Bench) -> dict[str, float]:
    """Return the CPU time that each part used so far."""
    return {
        name: sum(sum(process.cpu_times()[:4]) for process in processes)
        for name, processes in bench.processes().items()
    }
