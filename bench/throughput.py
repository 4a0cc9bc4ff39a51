"""1,000 one-line jobs submitted in bulk, until all have finished.

The clock runs from before the first call to the end that the control plane recorded for the last job.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import psutil

from bench.figures import Figures, moment, quantile
from bench.stack import Bench, fresh_stack

JOBS = 1000
SPEC = {"name": "one-line", "command": ["true"], "cpus": 0.01, "memory": "16MiB"}
PATIENCE_S = 300.0


def measure() -> Figures:
    """Return ``jobs_per_s``, ``submitted`` and ``finished``, and where the time went."""
    with fresh_stack() as bench:
        for _ in range(3):
            bench.client.jobs.submit(SPEC).wait(30)
        before = cpu_seconds(bench)
        began = time.time()
        made = bench.client.jobs.submit_many([SPEC] * JOBS)
        sent = time.time()
        wait_for_all(bench, made[-1]["number"])
        after = cpu_seconds(bench)
        jobs = [job for job in bench.client.jobs.list(limit=JOBS + 10) if job["number"] >= made[0]["number"]]
    finished = [job for job in jobs if job["state"] == "COMPLETED"]
    took_s = max(moment(job["ended_at"]) for job in jobs if job["ended_at"]) - began
    return Figures(
        {
            "jobs_per_s": len(finished) / took_s,
            "submitted": len(made),
            "finished": len(finished),
            "took_s": took_s,
            "submit_s": sent - began,
        },
        [*spans(jobs), *shares(before, after, took_s)],
    )


def wait_for_all(bench: Bench, last: int) -> None:
    """Wait until no job waits or runs; asks seldom, so that the asking costs little."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.25)
        if not any(bench.client.jobs.list(state=["PENDING", "RUNNING"], limit=1)):
            return
    states = Counter(job["state"] for job in bench.client.jobs.list(limit=JOBS))
    raise SystemExit(f"not all jobs up to {last} ended within {PATIENCE_S:.0f} s: {dict(states)}")


def spans(jobs: list[Any]) -> list[str]:
    """Say how long jobs waited and ran."""
    told = [job for job in jobs if job["started_at"] and job["ended_at"]]
    if not told:
        return []
    waited = [moment(job["started_at"]) - moment(job["submitted_at"]) for job in told]
    ran = [moment(job["ended_at"]) - moment(job["started_at"]) for job in told]
    return [
        f"submitted to started: p50 {quantile(waited, 0.5):.2f} s, max {max(waited):.2f} s",
        f"started to ended:     p50 {quantile(ran, 0.5):.2f} s, max {max(ran):.2f} s",
    ]


def cpu_seconds(bench: Bench) -> dict[str, float]:
    """Return the CPU time that each part and its ended children used so far."""
    used: dict[str, float] = {}
    for name, processes in bench.processes().items():
        for process in processes:
            try:
                times = process.cpu_times()
                # A shim outlives its part for a while, and what its commands used is counted with it.
                whose = "shims" if name == "agent" and is_shim(process) else name
            except psutil.NoSuchProcess:
                continue
            used[whose] = used.get(whose, 0.0) + sum(times[:4])
    machine = psutil.cpu_times()
    used["machine"] = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
    return used


def is_shim(process: psutil.Process) -> bool:
    """Tell whether a process was forked by a fork server."""
    parent = process.parent()
    return parent is not None and any("agents.supervisor.fork_server" in word for word in parent.cmdline())


def shares(before: dict[str, float], after: dict[str, float], took_s: float) -> list[str]:
    """Say what each part of the stack used for a job, and how much of a core while the jobs ran."""
    used = {name: after[name] - before.get(name, 0.0) for name in after}
    return [
        f"{name:<10} {seconds / JOBS * 1000:6.2f} ms a job, {seconds / took_s:5.0%} of a core"
        for name, seconds in sorted(used.items(), key=lambda item: -item[1])
    ]
