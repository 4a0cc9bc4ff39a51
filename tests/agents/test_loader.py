"""The example of a starved trainer, on a real agent: it works on idle cores while they are idle, at the same pid."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.protocol import DeviceClaim, Phase
from agents.supervisor import procfs
from tests.agents.conftest import Hands
from tests.agents.yard import order, stop

EXAMPLE = Path(__file__).parents[2] / "examples" / "loader" / "train.py"
Names = Callable[[], str]


class Watched:
    """A part whose processes and steps are looked at."""

    def __init__(self, hands: Hands, name: str) -> None:
        self.hands, self.name = hands, name
        self.shim = hands.shim_of(name)["pid"]

    def cores(self, span_s: float = 1.0) -> set[int]:
        """The cores on which its processes were seen to run during a span: how busy they are otherwise is no matter."""
        found: set[int] = set()
        until = time.monotonic() + span_s
        while time.monotonic() < until:
            for pid in procfs.descendants(self.shim):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if fields[0] == "R":
                    found.add(int(fields[36]))
            time.sleep(0.005)
        return found

    def step(self) -> int:
        progress = self.hands.yard.side(self.hands.name).here[self.name].progress
        return (progress.step if progress else 0) or 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to lend one")
def test_a_starved_trainer_works_on_idle_cores_and_gives_them_back(shared: Hands, part: Names) -> None:
    inventory = shared.yard.wait(lambda: shared.yard.side(shared.name).inventory)
    cpu = next(device for device in inventory.devices if device.kind == "cpu")
    cores = {int(core) for core in cpu.attributes["cores"].split(",")}

    def claim(count: int) -> list[DeviceClaim]:
        return [DeviceClaim(cpu.uuid, "cpu", cpu.vendor, cpu.model, cpu.index, count * 1000, 1 << 30)]

    trainer, neighbour = part(), part()
    command = [sys.executable, str(EXAMPLE), "--workers", str(2 * len(cores))]
    shared.yard.want(shared.name, order(trainer, *command, devices=claim(1), memory_bytes=0))
    before = shared.yard.phase(shared.name, trainer, Phase.RUNNING)
    assert before.pid is not None
    pid = before.pid
    watched = Watched(shared, trainer)

    # It says that it waits for input; nobody claims the other cores; so it gets them, and works on them.
    shared.yard.wait(lambda: os.sched_getaffinity(pid) == cores)
    shared.yard.wait(lambda: len(watched.cores(0.5)) > 1, 60)

    # Somebody claims them: all its processes are back on one core, and go on.
    shared.yard.want(shared.name, order(neighbour, "sleep", "300", devices=claim(len(cores) - 1)))
    shared.yard.phase(shared.name, neighbour, Phase.RUNNING)
    shared.yard.wait(lambda: len(os.sched_getaffinity(pid)) == 1)
    watched.cores(0.2)  # a thread that runs moves when it is next scheduled
    assert watched.cores() <= os.sched_getaffinity(pid)
    steps = watched.step()
    shared.yard.wait(lambda: watched.step() > steps > 0)
    after = shared.yard.side(shared.name).here[trainer]
    assert (after.pid, after.pid_start) == (before.pid, before.pid_start)
    for name in (trainer, neighbour):
        shared.yard.want(shared.name, stop(name, 0.0))
        shared.yard.ended(shared.name, name)
