"""A device that a killed part does not let go is quarantined after a minute, with what holds it, and freed later."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agents.protocol import QUARANTINED, Desired, DeviceClaim, Phase
from agents.runtimes import Sighting
from agents.runtimes.scripted import ScriptedExecutor
from agents.tasks.journal import Intent, Journal
from agents.tasks.leftovers import PATIENCE_S, Leftovers
from agents.tasks.node import NodeTasks
from tests.agents.yard import order, stop

GPU = DeviceClaim("GPU-1", "gpu", "nvidia", "m", 0, 1000, 0)
CPU = DeviceClaim("cpu-1", "cpu", "intel", "m", 0, 1000, 0)


def test_nothing_is_quarantined_before_its_minute() -> None:
    made = Leftovers()
    left = {"p": ([os.getpid()], [GPU, CPU])}
    assert made.look(left, 100.0) == []
    assert made.look(left, 100.0 + PATIENCE_S - 0.1) == []
    (error,) = made.look(left, 100.0 + PATIENCE_S)
    assert (error.uuid, error.code) == (GPU.uuid, QUARANTINED)


def test_pid_user_and_age_are_told_and_a_crowd_is_counted() -> None:
    made = Leftovers()
    crowd = {"p": ([os.getpid()] * 5, [GPU])}
    made.look(crowd, 0.0)
    (error,) = made.look(crowd, 130.0)
    assert error.detail.startswith("killed 2 min ago and still there: ")
    assert f"(pid {os.getpid()}, " in error.detail
    assert " min old)" in error.detail
    assert error.detail.endswith("and 2 more")
    assert made.look(crowd, 131.0) == [error]  # the same words until the next minute


def test_who_went_and_came_back_has_its_minute_again() -> None:
    made = Leftovers()
    left = {"p": ([1], [GPU])}
    made.look(left, 0.0)
    assert made.look({}, 59.0) == []
    assert made.look(left, 61.0) == []


class Wedged(ScriptedExecutor):
    """Parts that are killed and do not go, until ``gone``."""

    gone = False

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        self.stops[intent.part] = why

    def look(self, intent: Intent) -> Sighting:
        if intent.part in self.stops and not self.gone:
            return Sighting(Phase.STOPPING, left=(os.getpid(),))
        return super().look(intent)


async def test_a_node_quarantines_the_device_and_not_itself(tmp_path: Path) -> None:
    executor = Wedged()
    (tmp_path / "p" / "tmp").mkdir(parents=True)
    node = NodeTasks("n", tmp_path, Journal(tmp_path / "journal.jsonl"), executor, "boot-0")
    node.open()
    run = order("p", "true", devices=[GPU])
    node.apply(Desired(generation=1, wanted=[run]))
    async with asyncio.timeout(10):
        while "p" not in executor.running:  # noqa: ASYNC110 - the executor's table has no event
            await asyncio.sleep(0.01)
    node.look("p")
    node.apply(Desired(generation=2, wanted=[stop("p", 0.0)]))
    node.look("p")
    assert node.quarantined() == []
    node._leftovers.since["p"] -= PATIENCE_S
    assert [error.uuid for error in node.quarantined()] == [GPU.uuid]
    executor.gone = True
    node.look("p")
    assert node.quarantined() == []
    await node.close()
