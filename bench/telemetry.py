"""What watching eight cards costs, and how soon a lost one is known: a real agent, the real pynvml, a stand-in library.

The stand-in is the one of the tests; it needs a C compiler, and without one there is nothing to measure.
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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from agents.protocol import DeviceClaim, Phase, Timers
from agents.supervisor import procfs
from bench.figures import Figures
from tests.agents.yard import TOKEN, Yard, order, stop, yard

ROOT = Path(__file__).parents[1]
NAME = "bench"
CARDS = 8
SPAN_S = 30.0
LOSSES = 5


def measure() -> dict[str, float]:
    """``telemetry_cpu_percent`` of one core, ``device_loss_s`` (the median of a few losses), and what explains them.

    The cost of telemetry is what an agent takes with it beyond what it takes without, while a stage holds all cards;
    the whole agent with it is ``telemetry_agent_cpu_percent``.
    """
    without = run(telemetry_s=3600.0)["cpu_percent"]
    found = run(telemetry_s=1.0, losses=LOSSES)
    return {
        "telemetry_cpu_percent": max(0.0, found["cpu_percent"] - without),
        "device_loss_s": found["loss_s"],
        "device_loss_s_max": found["loss_s_max"],
        "telemetry_agent_cpu_percent": found["cpu_percent"],
        "telemetry_reader_cpu_percent": found["reader_cpu_percent"],
        "telemetry_samples_per_device_s": found["samples_per_device_s"],
    }


def run(telemetry_s: float, losses: int = 0) -> dict[str, float]:
    """One agent from its start to its end."""
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    try:
        cards = Cards(folder)
        timers = Timers(report_s=5.0, telemetry_s=telemetry_s)
        with yard(timers=timers) as model, agent(model, folder, cards) as pid:
            model.wait(lambda: len(devices(model)) == CARDS)
            found = cost(model, pid)
            return found | loss(model, cards, losses) if losses else found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Cards:
    """The stand-in library and the file that says what its cards do."""

    def __init__(self, folder: Path) -> None:
        compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
        if compiler is None:
            raise SystemExit("this needs a C compiler for the stand-in of NVIDIA's library: apt-get install gcc")
        source = ROOT / "tests/agents/nvml_standin.c"
        library = folder / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self.state = folder / "cards"
        self.environment = {"LD_LIBRARY_PATH": str(folder), "NVML_STANDIN": str(self.state)}
        self.write()

    def write(self, lost: int | None = None) -> None:
        """All cards well, or one of them off the bus."""
        lines = [f"count {CARDS}"]
        for card in range(CARDS):
            facts = {"uuid": f"GPU-{card}", "util": 90, "power": 600_000, "temp": 60, "clock": 1700, "used": 1 << 34}
            lines += [f"{card}.{name} {value}" for name, value in facts.items()]
        if lost is not None:
            lines.append(f"{lost}.lost 1")
        draft = self.state.with_suffix(".draft")
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(self.state)


@contextmanager
def agent(model: Yard, folder: Path, cards: Cards) -> Iterator[int]:
    """A running agent that has reported; everything that it started is ended with it."""
    (folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "agents", "--url", model.url, "--state", str(folder / "state"), "--name", NAME]
    command += ["--join-token-file", str(folder / "token"), "--run-as", str(os.geteuid())]
    environment = {**os.environ, **cards.environment}
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=environment)
    try:
        model.wait(lambda: model.side(NAME).report)
        yield process.pid
    finally:
        process.terminate()
        process.wait()
        stopped = [sys.executable, "-m", "agents", "stop-all", "--state", str(folder / "state"), "--grace", "0"]
        subprocess.run(stopped, cwd=ROOT, check=False, capture_output=True)


def devices(model: Yard) -> list[str]:
    """The uuids of the accelerators that the agent told."""
    inventory = model.side(NAME).inventory
    return [device.uuid for device in inventory.devices if device.kind == "gpu"] if inventory else []


def cost(model: Yard, pid: int) -> dict[str, float]:
    """The share of a core that the agent and its reader take while a stage holds all cards."""
    part = uuid.uuid4().hex
    claims = [DeviceClaim(f"GPU-{card}", "gpu", "nvidia", "H100", card, 1000, 0) for card in range(CARDS)]
    model.want(NAME, order(part, "sleep", "600", devices=claims))
    model.phase(NAME, part, Phase.RUNNING)
    time.sleep(5.0)
    # The shim of the part is no child of the agent; the reader of the library is.
    family = [pid, *procfs.descendants(pid)]
    readers = [each for each in family if "agents.devices.readers" in _command(each)]
    before, read_before, count_before = procfs.cpu_s(family), procfs.cpu_s(readers), _samples(model)
    time.sleep(SPAN_S)
    spent, read = procfs.cpu_s(family) - before, procfs.cpu_s(readers) - read_before
    samples = _samples(model) - count_before
    model.want(NAME, stop(part, 0.1))
    model.ended(NAME, part)
    return {
        "cpu_percent": spent / SPAN_S * 100,
        "reader_cpu_percent": read / SPAN_S * 100,
        "samples_per_device_s": samples / SPAN_S / CARDS,
    }


def _samples(model: Yard) -> int:
    with model.lock:
        return sum(s.uuid.startswith("GPU-") for batch in model.side(NAME).telemetry for s in batch.devices)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def loss(model: Yard, cards: Cards, losses: int) -> dict[str, float]:
    """From the moment a card falls off the bus until the control plane has the report that says so."""
    spans = []
    for turn in range(losses):
        card = turn % CARDS
        began = time.monotonic()
        cards.write(lost=card)
        model.wait(partial(_is_known_lost, model, f"GPU-{card}"))
        spans.append(time.monotonic() - began)
        cards.write()
        model.wait(lambda: not _faulty(model))
        time.sleep(0.37)  # so that losses fall at different points of the second
    return {"loss_s": statistics.median(spans), "loss_s_max": max(spans)}


def _is_known_lost(model: Yard, uuid: str) -> bool:
    return uuid in _faulty(model)


def _faulty(model: Yard) -> set[str]:
    report = model.side(NAME).report
    return {error.uuid for error in report.conditions.device_errors} if report else set()


if __name__ == "__main__":
    print(Figures({name: round(value, 3) for name, value in measure().items()}).table())
    os._exit(0)
