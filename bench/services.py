"""Inference services: what the router adds to a request, and what updates and kills cost a service under load.

The router is measured before two replicas that stream eight events at once, on the same cores as the client; what it
adds is the difference to the same load without it, in turns. Updates and kills are those of a real stack with one node.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from bench.delegated import ray_figures, slurm_figures
from bench.figures import Figures, quantile
from bench.serving import prefix, scaling
from bench.serving.load import Load, Under, request, streams
from bench.serving.router import PATH, router, until
from bench.stack import ROOT, Bench, fresh_stack
from deploy.local.home import Home
from deploy.local.lock import Running
from deploy.local.port import free_port
from deploy.local.service import importing
from switchyard import jobfile

ROUNDS = 3
EXAMPLE = ROOT / "examples" / "serve"
COLD_STARTS, WARM_CALLS = 7, 500
EDGE_DAYS = 1
FUNCTION = "def handle(event):\n    return {'sum': sum(event)}\n"
ROWS = ("router", "load", "functions", "edge", "slurm", "ray", "prefix", "autoscale")


def measure(only: Sequence[str] = ()) -> Figures:
    """Return the figures of the rows that are named, of all if none is."""
    rows = [row for row in ROWS if row in (only or ROWS)]
    if not rows:
        raise SystemExit(f"the rows of services are {', '.join(ROWS)}")
    figures: dict[str, float] = {}
    remarks: list[str] = []
    if "router" in rows:
        with tempfile.TemporaryDirectory(prefix="yard-bench-") as folder, _door(Path(folder)) as (port, behind):
            figures |= _added(port, behind)
        remarks.append("router_p50_ms, router_p99_ms: time to the first byte through the router less that without it")
    if {"load", "functions"} & {*rows}:
        with fresh_stack() as bench:
            if "load" in rows:
                figures |= _under_load(bench)
                remarks.append(
                    "kill_cut: answers that had begun when their replica was killed; nothing can repeat those"
                )
            if "functions" in rows:
                figures |= functions(bench)
                remarks += [
                    f"function_cold_ms: median of {COLD_STARTS} first calls of a function that sleeps",
                    "function_warm_ms, function_warm_p99_ms: one call after the other over one connection",
                ]
    if "edge" in rows:
        with fresh_stack() as bench:
            figures |= _edge(bench)
        remarks.append(
            "edge_lost, edge_doubled: of the jobs that a node accepted in a day without its link (driven clock)"
        )
    if "slurm" in rows:
        figures |= slurm_figures()
        remarks += [
            "slurm_overhead_ms: submission to start, through the stack less by sbatch alone; medians, in turns",
            "foreign_lost, foreign_doubled: of 100 jobs, with the agent killed six times and slurmctld five",
        ]
    if "ray" in rows:
        figures |= ray_figures()
    for row, module in (("prefix", prefix), ("autoscale", scaling)):
        if row in rows and (traces := os.environ.get("YARD_TRACES")):
            found, said = module.measure(Path(traces))
            figures |= found
            remarks += said
        elif row in rows:
            remarks.append(
                f"{row}: absent, YARD_TRACES names no folder of traces (docs/benchmarks says where they are)"
            )
    return Figures({**figures}, remarks)


def _added(port: int, behind: int) -> dict[str, float]:
    """Measure the same load with and without the router, in turns, and keep the best round of each."""
    through = request(PATH, "bench", "yard_of-the-bench")
    direct = request("/v1/completions", "bench")
    firsts: dict[int, list[list[float]]] = {port: [], behind: []}
    rates: dict[int, float] = {port: 0.0, behind: 0.0}
    for _ in range(ROUNDS):
        for door, asked in ((behind, direct), (port, through)):
            quiet = asyncio.run(streams(door, asked, count=400, at_once=2, pause_s=0.01))
            full = asyncio.run(streams(door, asked, count=3_000, at_once=32))
            if quiet.failed or full.failed:
                raise SystemExit(f"requests failed: {(quiet.failed + full.failed)[:3]}")
            firsts[door].append(quiet.first)
            rates[door] = max(rates[door], len(full.whole) / full.took_s)

    def best(door: int, share: float) -> float:
        return min(quantile(times, share) for times in firsts[door]) * 1000

    return {
        "router_p50_ms": best(port, 0.5) - best(behind, 0.5),
        "router_p99_ms": best(port, 0.99) - best(behind, 0.99),
        "router_rps": rates[port],
        "direct_rps": rates[behind],
    }


@contextmanager
def _door(folder: Path) -> Iterator[tuple[int, int]]:
    """A router before two replicas; yields its port, and that of the first replica."""
    ports = [free_port(23_200), free_port(23_300)]
    processes = [
        subprocess.Popen([sys.executable, "-m", "bench.serving.replica", str(port)], cwd=ROOT) for port in ports
    ]
    try:
        with router(folder, ports) as own:
            yield own, ports[0]
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _under_load(bench: Bench) -> dict[str, float]:
    """Update a service of two replicas, and kill one of them, both under load."""
    file: dict[str, Any] = jobfile.read(str(EXAMPLE / "service.yaml"))
    file |= {"replicas": 2, "template": {**file["template"], "workdir": str(EXAMPLE)}}
    services = bench.client.services
    number = services.create(file)["service"]["id"]

    def settled() -> bool:
        now: Any = services.get(number)
        one, open_ = now["service"], [each for each in now["replicas"] if each["state"] != "ENDED"]
        return bool(one["ready"] == 2 == len(open_) and all(each["revision"] == one["revision"] for each in open_))

    until(settled)
    found: Any = services.get(number)
    place, token = urlsplit(found["service"]["address"]), bench.client.wire.address[1]
    cold_s = found["service"]["cold_start_s"]

    def loaded(what: Callable[[], None], *, is_stream: bool) -> Load:
        asked = request(f"{place.path}/completions", place.netloc, token, tokens=6, is_stream=is_stream)
        with Under(place.port or 0, asked, at_once=4, done=b"[DONE]" if is_stream else b"") as under:
            until(lambda: len(under.load.whole) > 50)
            what()
            until(settled)
            count = len(under.load.whole)
            until(lambda: len(under.load.whole) > count + 50)
        return under.load

    def update() -> None:
        services.change(number, {"file": {**file, "template": {**file["template"], "env": {"ANOTHER": "1"}}}})

    def kill() -> None:
        now: Any = services.get(number)
        job = next(each["job"] for each in now["replicas"] if each["state"] == "READY")
        ended = sum(each["state"] == "ENDED" for each in now["replicas"])
        _process(str(job)).kill()
        newest: Callable[[], Any] = lambda: services.get(number)  # noqa: E731
        until(lambda: sum(each["state"] == "ENDED" for each in newest()["replicas"]) > ended)

    updated = loaded(update, is_stream=True)
    killed, streamed = loaded(kill, is_stream=False), loaded(kill, is_stream=True)
    return {
        "update_failed": len(updated.failed) + len(updated.cut),
        "kill_failed": len(killed.failed) + len(killed.cut) + len(streamed.failed),
        "kill_cut": len(streamed.cut),
        "update_requests": len(updated.whole),
        "kill_requests": len(killed.whole) + len(streamed.whole),
        "service_cold_s": cold_s,
    }


def functions(bench: Bench) -> dict[str, float]:
    """Call a function that sleeps, several times, and one that is awake, many times."""
    functions = bench.client.functions
    # The first python3 of a machine may be a script that looks for the right one, which takes longer than all the rest.
    options = {"idle_s": 1, "max": 1, "template": {"env": {"FUNCTION_PYTHON": sys.executable}}}
    made: Any = functions.create("add", code=FUNCTION, options=options)
    number, address = made["function"]["id"], made["function"]["address"]
    newest: Callable[[], Any] = lambda: functions.get(number)["function"]  # noqa: E731
    headers = {"authorization": f"Bearer {bench.client.wire.address[1]}"}

    def call(http: httpx.Client) -> float:
        began = time.perf_counter()
        answer = http.post(address, json=[1, 2])
        took_ms = (time.perf_counter() - began) * 1000
        if answer.json() != {"sum": 3}:
            raise SystemExit(f"a function answered {answer.status_code} {answer.text[:200]}")
        return took_ms

    cold, warm = [], []
    for _ in range(COLD_STARTS):
        until(lambda: newest()["state"] == "ASLEEP")
        with httpx.Client(headers=headers, timeout=60) as http:
            cold.append(call(http))
    with httpx.Client(headers=headers, timeout=60) as http:
        warm = [call(http) for _ in range(WARM_CALLS + 20)][20:]
    functions.delete(number)
    return {
        "function_cold_ms": quantile(cold, 0.5),
        "function_cold_most_ms": max(cold),
        "function_warm_ms": quantile(warm, 0.5),
        "function_warm_p99_ms": quantile(warm, 0.99),
    }


def _edge(bench: Bench) -> dict[str, float]:
    """Drive the clock of a node of which this stack's database is the record."""
    up = Running.read(Home(bench.home))
    if up is None:
        raise SystemExit("the stack does not run")
    stack = importing({**os.environ, **up.environment})
    told = subprocess.run(
        [sys.executable, "-m", "bench.edge.day", "11", str(EDGE_DAYS)], cwd=ROOT, env=stack, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return {f"edge_{name}": count for name, count in json.loads(told.stdout).items()}


def _process(job: str) -> psutil.Process:
    """Return the server of the replica that is this job."""
    for process in psutil.process_iter():
        try:
            is_server = any(word.endswith("serve.py") for word in process.cmdline())
            if is_server and process.environ().get("YARD_JOB_ID") == job:
                return process
        except psutil.Error:
            continue
    raise SystemExit(f"there is no process of job {job}")
