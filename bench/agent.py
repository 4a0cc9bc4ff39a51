"""One real agent against a model control plane: start latency, throughput, memory, rest and adoption.

``start_ms_*`` counts from the moment Desired is handed to the socket until the user's command (``date``) reads a clock.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path

from agents import procfs
from agents.protocol import Phase
from agents.record import read_whole
from bench.figures import Figures
from tests.agents.yard import TOKEN, Yard, order, yard

ROOT = Path(__file__).parents[1]
NAME = "bench"


def measure() -> Figures:
    """Start, load, rest and restart one agent; no figure is judged."""
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    with yard() as model:
        agent = start(model, folder)
        try:
            values = latency(model) | throughput(model) | rest(agent.pid) | footprint(model, agent.pid, folder)
            agent.kill()
            agent.wait()
            began = time.monotonic()
            connections = model.side(NAME).connections
            agent = start(model, folder)
            model.wait(lambda: model.side(NAME).connections > connections and len(model.side(NAME).here) >= 100)
            values["adopt_100_s"] = time.monotonic() - began
        finally:
            agent.terminate()
            agent.wait()
            stopped = [sys.executable, "-m", "agents", "stop-all", "--state", str(folder / "state"), "--grace", "0"]
            subprocess.run(stopped, cwd=ROOT, check=False, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)
    return Figures(
        {name: round(value, 2) for name, value in values.items()},
        ["adoption counts from the start of the agent's process; the model control plane shares the cores"],
    )


def start(model: Yard, folder: Path) -> subprocess.Popen[bytes]:
    """Start the agent and return once it has reported."""
    (folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "agents", "--url", model.url, "--state", str(folder / "state"), "--name", NAME]
    command += ["--join-token-file", str(folder / "token"), "--run-as", "self"]
    agent = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    model.wait(lambda: model.side(NAME).report)
    return agent


def latency(model: Yard, count: int = 100) -> dict[str, float]:
    """Starts one after the other, and the time until the control plane knows that one runs and that one ended."""
    starts, ends = [], []
    for _ in range(count):
        name = uuid.uuid4().hex
        sent = time.time()
        model.want(NAME, order(name, "date", "+%s.%N"))
        model.ended(NAME, name)
        ends.append(time.time() - sent)
        model.wait(partial(model.logs.get, (name, 0, "out")))
        starts.append(float(model.logs[(name, 0, "out")]) - sent)
    return {
        "start_ms_p50": statistics.median(starts) * 1000,
        "start_ms_p95": sorted(starts)[int(count * 0.95)] * 1000,
        "start_to_known_end_ms_p50": statistics.median(ends) * 1000,
    }


def throughput(model: Yard, count: int = 600, batch: int = 50) -> dict[str, float]:
    """Parts started and reaped per second, ordered in batches as fast as they end."""
    names = [uuid.uuid4().hex for _ in range(count)]
    began = time.monotonic()
    for at in range(0, count, batch):
        model.want(NAME, *(order(name, "true") for name in names[at : at + batch]))
        if at >= batch:
            model.wait(partial(_have_ended, model, names[at - batch : at]), 60)
    model.wait(partial(_have_ended, model, names), 60)
    return {"parts_per_s": count / (time.monotonic() - began)}


def _have_ended(model: Yard, names: list[str]) -> bool:
    return all(name in model.side(NAME).ended for name in names)


def rest(pid: int, span_s: float = 15.0) -> dict[str, float]:
    """The agent's share of a core when nothing runs, its vendor processes and its warm parent included."""
    time.sleep(8.0)
    family = [pid, *procfs.descendants(pid)]
    before = procfs.cpu_s(family)
    time.sleep(span_s)
    return {"rest_core_percent": (procfs.cpu_s(family) - before) / span_s * 100}


def footprint(model: Yard, pid: int, folder: Path, count: int = 100) -> dict[str, float]:
    """Memory of the agent and of a shim while a hundred parts run. PSS counts a shared page once among its sharers."""
    names = [uuid.uuid4().hex for _ in range(count)]
    began = time.monotonic()
    model.want(NAME, *(order(name, "sleep", "600") for name in names))
    for name in names:
        model.phase(NAME, name, Phase.RUNNING)
    started_s = time.monotonic() - began
    time.sleep(2)
    before = procfs.cpu_s([pid])
    time.sleep(5)
    shims = [record["pid"] for name in names if (record := read_whole(f"{folder}/state/parts/{name}/shim.json"))]
    before_shims = procfs.cpu_s(shims)
    time.sleep(5)
    return {
        "start_100_s": started_s,
        "agent_rss_mib": _memory(pid, "status", "VmRSS"),
        "shim_rss_mib": statistics.median(_memory(shim, "status", "VmRSS") for shim in shims),
        "shim_pss_mib": statistics.median(_memory(shim, "smaps_rollup", "Pss") for shim in shims),
        "agent_core_percent_100_parts": (procfs.cpu_s([pid]) - before) / 10 * 100,
        "shim_core_percent_each": (procfs.cpu_s(shims) - before_shims) / 5 / count * 100,
    }


def _memory(pid: int, file: str, field: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    print(measure().table())
    os._exit(0)
