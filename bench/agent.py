"""One real agent against a model control plane: start overhead, throughput, memory, rest, adoption and logs.

``start_overhead_*`` counts from the moment Desired is handed to the socket until the user's command (``date``) reads a
clock. ``shim_rss_mib`` is the resident memory of supervision for each live attempt. ``log_mib_per_s`` counts from the
order to print until the control plane holds the last byte. What telemetry costs, how soon a lost device is known and
what the feedback queue does for short stages are measured after it, by modules of their own.
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

from agents.protocol import Phase
from agents.supervisor import procfs
from agents.supervisor.record import shim_record
from bench import feedback_queue, telemetry
from bench.figures import Figures
from tests.agents.yard import TOKEN, Yard, order, yard

ROOT = Path(__file__).parents[1]
NAME = "bench"
LOG_MIB = 128


def measure() -> Figures:
    """Start, load, rest and restart one agent, then two more with eight cards, then the queue; no figure is judged."""
    queue = feedback_queue.measure()
    shared = "adoption counts from the start of the agent's process; the model control plane shares the cores"
    return Figures({**one_agent(), **telemetry.measure(), **queue.values}, [shared, *queue.remarks])


def one_agent() -> dict[str, float]:
    """What one agent does with many parts."""
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    with yard() as model:
        agent = start(model, folder)
        try:
            values = latency(model) | throughput(model, agent.pid) | logs(model) | rest(agent.pid)
            values |= footprint(model, agent.pid, folder)
            agent.kill()
            agent.wait()
            began = time.monotonic()
            connections = model.side(NAME).connections
            agent = start(model, folder)
            model.wait(lambda: model.side(NAME).connections > connections and len(model.side(NAME).here) >= 100)
            values["adoption_100_s"] = time.monotonic() - began
        finally:
            agent.terminate()
            agent.wait()
            stopped = [sys.executable, "-m", "agents", "stop-all", "--state", str(folder / "state"), "--grace", "0"]
            subprocess.run(stopped, cwd=ROOT, check=False, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)
    return values


def start(model: Yard, folder: Path) -> subprocess.Popen[bytes]:
    """Start the agent and return once it has reported."""
    (folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "agents", "--url", model.url, "--state", str(folder / "state"), "--name", NAME]
    command += ["--join-token-file", str(folder / "token"), "--run-as", str(os.geteuid())]
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
        "start_overhead_p50_ms": statistics.median(starts) * 1000,
        "start_overhead_p95_ms": sorted(starts)[int(count * 0.95)] * 1000,
        "start_to_known_end_p50_ms": statistics.median(ends) * 1000,
    }


def throughput(model: Yard, agent: int, count: int = 600, batch: int = 50) -> dict[str, float]:
    """Parts started and reaped per second, ordered in batches as fast as they end; and what the agent spends on one."""
    names = [uuid.uuid4().hex for _ in range(count)]
    before = procfs.cpu_s([agent])
    began = time.monotonic()
    for at in range(0, count, batch):
        model.want(NAME, *(order(name, "true") for name in names[at : at + batch]))
        if at >= batch:
            model.wait(partial(_have_ended, model, names[at - batch : at]), 60)
    model.wait(partial(_have_ended, model, names), 60)
    return {
        "attempts_per_s": count / (time.monotonic() - began),
        "agent_cpu_ms_per_attempt": (procfs.cpu_s([agent]) - before) / count * 1000,
    }


def logs(model: Yard) -> dict[str, float]:
    """Output of one command, from its first byte to the last that the control plane acknowledged."""
    name = uuid.uuid4().hex
    size = LOG_MIB << 20
    began = time.monotonic()
    model.want(NAME, order(name, "head", "-c", str(size), "/dev/zero"))
    model.wait(lambda: len(model.logs[(name, 0, "out")]) >= size, 120)
    return {"log_mib_per_s": LOG_MIB / (time.monotonic() - began)}


def _have_ended(model: Yard, names: list[str]) -> bool:
    return all(name in model.side(NAME).ended for name in names)


def rest(pid: int, span_s: float = 15.0) -> dict[str, float]:
    """The agent's share of a core when nothing runs, its vendor processes, its fork server and idle shims included."""
    time.sleep(8.0)
    before = {each: procfs.cpu_s([each]) for each in [pid, *procfs.descendants(pid)]}
    time.sleep(span_s)
    used_s = sum(max(0.0, procfs.cpu_s([each]) - then_s) for each, then_s in before.items())
    return {"rest_core_percent": used_s / span_s * 100}


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
    shims = [record["pid"] for name in names if (record := shim_record(f"{folder}/state/parts/{name}"))]
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
