"""Delegated executors on a real Slurm and a real Ray of this host: scenarios, what is added to sbatch, what kills cost.

Run alone as ``python -m bench.delegated``, or a part of it by its name. Without the programs of Slurm or Ray there are
no figures of it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as Xml
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import quantile
from bench.stack import ROOT, Bench, fresh_stack
from deploy.local.home import Home
from deploy.local.lock import Running
from deploy.local.service import importing
from switchyard.client import JobRecord
from tests.providers.ray_cluster import PROGRAM as RAY
from tests.providers.slurm_cluster import SlurmOnThisHost, missing, running

NODE = "login"
STARTS = 24
JOBS = 100
PATIENCE_S = 400.0
# More than the cluster has: what does not fit waits in Slurm's queue, where kills may hit it.
SHAPE = 'engine = "slurm"\n[[shape]]\nname = "small"\nnodes = 2\ncpus = 64\nmemory_gib = 64\n'


PARTS = ("scenarios", "added", "killed")


def slurm_figures(parts: Sequence[str] = PARTS) -> dict[str, float]:
    """Return the figures of these parts; none on a host without Slurm."""
    if missing():
        return {}
    figures = {"slurm_scenarios_pct": _scenarios("slurm")} if "scenarios" in parts else {}
    if not set(parts) - {"scenarios"}:
        return figures
    with (
        tempfile.TemporaryDirectory(prefix="yard-slurm-") as folder,
        running(Path(folder)) as slurm,
        fresh_stack() as bench,
        _login_node(bench, slurm, Path(folder)) as site,
    ):
        figures |= _added(site) if "added" in parts else {}
        figures |= _killed(site) if "killed" in parts else {}
    return figures


def ray_figures() -> dict[str, float]:
    """Return the figures; none on a host without Ray."""
    return {"ray_scenarios_pct": _scenarios("ray")} if RAY is not None else {}


def _scenarios(kind: str) -> float:
    """Return how many of the scenarios that every executor is judged by pass on an engine, of those that apply."""
    with tempfile.TemporaryDirectory(prefix="yard-bench-") as folder:
        told = f"{folder}/told.xml"
        words = ["-q", "-p", "no:django", "-k", kind, f"--junitxml={told}", "tests/agents/conformance"]
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
        cases = list(Xml.parse(told).getroot().iter("testcase"))
    applies = [case for case in cases if case.find("skipped") is None]
    passed = [case for case in applies if case.find("failure") is None and case.find("error") is None]
    return 100 * len(passed) / len(applies) if applies else 0.0


@dataclass
class Site:
    """A stack, a Slurm, and the agent that represents the one to the other."""

    bench: Bench
    slurm: SlurmOnThisHost
    folder: Path
    command: list[str]
    environment: dict[str, str]
    agent: subprocess.Popen[bytes] | None = None

    def start_agent(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(self.command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)

    def kill_agent(self) -> None:
        assert self.agent is not None, "it was started"
        self.agent.kill()
        self.agent.wait()

    def submit(self, run: str) -> JobRecord:
        spec = {"pool": "hpc", "name": "small", "cpus": 1, "memory": "64MiB", "time_limit": "10m", "run": run}
        # A controller that is killed kills what it had begun and not noted; that is a fault of the node.
        retry = {"max": 5, "on": ["supervisor_lost", "node_fail"], "backoff": "1s"}
        return self.bench.client.jobs.submit({**spec, "retry": retry})


@contextmanager
def _login_node(bench: Bench, slurm: SlurmOnThisHost, folder: Path) -> Iterator[Site]:
    bench.client.create_pool({"name": "hpc"})
    up = Running.read(Home(bench.home))
    assert up is not None, "the stack runs"
    stack = importing({**os.environ, **up.environment})
    made = subprocess.run(
        [sys.executable, "manage.py", "join_token", "--pool", "hpc"],
        cwd=ROOT, env=stack, capture_output=True, text=True, check=True,
    )  # fmt: skip
    state = folder / "agent"
    state.mkdir()
    (state / "join").write_text(made.stdout.strip())
    (state / "slurm.toml").write_text(SHAPE)
    command = [
        *(sys.executable, "-m", "agents", "--url", stack["YARD_AGENTS_URL"], "--state", str(state), "--name", NODE),
        *("--join-token-file", str(state / "join"), "--run-as", "root" if os.geteuid() == 0 else "self"),
        *("--delegate", str(state / "slurm.toml")),
    ]
    site = Site(bench, slurm, folder, command, slurm.environment)
    site.start_agent()
    try:
        _until(lambda: any(n["name"] == NODE and n["state"] == "READY" for n in bench.client.nodes.list()))
        yield site
    finally:
        if site.agent is not None:
            site.agent.send_signal(signal.SIGTERM)
            site.agent.wait()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit("it did not come to pass")
        time.sleep(0.2)


def _added(site: Site) -> dict[str, float]:
    """Measure from submission to the start of the command, by sbatch alone and through the stack, in turns."""
    taken: dict[str, list[float]] = {"ours": [], "sbatch": []}
    for n in range(STARTS):
        for who in ("sbatch", "ours"):
            mark = site.folder / f"{who}-{n}"
            script = f"date +%s.%N > {mark}.draft; mv {mark}.draft {mark}"
            began = time.time()
            if who == "ours":
                site.submit(script)
            else:
                subprocess.run(
                    ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/"],
                    input=f"#!/bin/sh\n{script}\n", env=site.slurm.environment, text=True, check=True,
                    stdout=subprocess.DEVNULL,
                )  # fmt: skip
            _until(mark.exists)
            taken[who].append(float(mark.read_text()) - began)
            # The next one starts on a cluster that has nothing else to do.
            _until(lambda: site.slurm.jobs() == [])
    ours, alone = (statistics.median(taken[who][2:]) * 1000 for who in ("ours", "sbatch"))
    return {
        "slurm_overhead_ms": ours - alone,
        "slurm_sbatch_ms": alone,
        "slurm_overhead_p90_ms": (quantile(taken["ours"][2:], 0.9) - quantile(taken["sbatch"][2:], 0.9)) * 1000,
    }


def _killed(site: Site) -> dict[str, float]:
    """Kill the agent and Slurm's controller while small jobs run; count what was lost and what ran twice."""
    ran = site.folder / "ran"
    ran.write_text("")
    told = f'echo "$YARD_JOB_ID-$YARD_EPOCH" >> {ran}; sleep 0.3; echo "$YARD_JOB_ID" >> {ran}'
    jobs = [site.submit(told) for _ in range(JOBS)]

    def has_run(share: float) -> bool:
        site.slurm.resume_drained()
        return len(ran.read_text().split()) >= share * 2 * JOBS

    for share in (0.05, 0.15, 0.3, 0.45, 0.6, 0.75):
        _until(lambda share=share: has_run(share))  # type: ignore[misc]
        site.kill_agent()
        if share > 0.1:
            site.slurm.kill_controller()
            time.sleep(1)
            site.slurm.start_controller()
        site.start_agent()

    def is_over() -> bool:
        site.slurm.resume_drained()
        for job in jobs:
            if not job.is_final:
                job.refresh()
        return all(job.is_final for job in jobs)

    _until(is_over)
    times = Counter(ran.read_text().split())
    return {
        "foreign_lost": sum(job.state != "COMPLETED" for job in jobs),
        # An attempt that began twice, or a job that was done twice.
        "foreign_doubled": sum(count > 1 for count in times.values()),
        "foreign_attempts": sum("-" in line for line in times),
    }


if __name__ == "__main__":
    chosen = sys.argv[1:] or PARTS
    print(json.dumps(slurm_figures(chosen) | (ray_figures() if "scenarios" in chosen else {}), indent=2))
