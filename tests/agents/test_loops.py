"""A loop that fails is started again, and whoever looks at the node learns of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents import loops
from agents.link.connection import ServerConnection
from agents.link.renewal import Renewal
from agents.loops import Loops
from agents.protocol import Desired, Phase, Wanted
from agents.runtimes.scripted import ScriptedExecutor
from agents.tasks.journal import Journal
from agents.tasks.node import NodeTasks
from agents.telemetry.host import HostView
from tests.agents.yard import order


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; none of them takes time."""
    made: list[float] = []
    sleep = asyncio.sleep

    async def note(pause_s: float) -> None:
        made.append(pause_s)
        await sleep(0)

    # In this module only: other threads of these tests sleep, too.
    monkeypatch.setattr(loops, "asyncio", SimpleNamespace(sleep=note))
    return made


async def test_a_loop_that_fails_is_started_again_after_pauses_that_grow_to_a_limit(pauses: list[float]) -> None:
    told, left = [], 9

    async def loop() -> None:
        nonlocal left
        left -= 1
        if left:
            raise KeyError("gpu")

    kept = Loops(lambda: told.append(left))
    await kept.keep("telemetry", loop)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(told) == 8
    assert kept.notes() == [
        "this agent's telemetry failed several times (KeyError: 'gpu'); it goes on, and its log has more"
    ]


async def test_what_has_been_well_for_a_while_is_told_no_more(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: now))
    kept = Loops(lambda: None)
    with kept.careful("look at part p"):
        raise RuntimeError
    assert kept.notes() == ["this agent's look at part p failed once (RuntimeError); it goes on, and its log has more"]
    now += loops.CALM_S + 1
    assert kept.notes() == []
    fails = [True, True]

    async def loop() -> None:
        nonlocal now
        if fails:
            fails.pop()
            now += loops.CALM_S + 1
            raise RuntimeError

    await kept.keep("telemetry", loop)
    # It ran well for long before it failed again: the pause begins anew.
    assert pauses == [loops.FIRST_PAUSE_S, loops.FIRST_PAUSE_S]


async def test_who_cancels_a_loop_ends_it(pauses: list[float]) -> None:
    async def loop() -> None:
        await asyncio.Event().wait()

    kept = Loops(lambda: None)
    task = asyncio.create_task(kept.keep("link", loop))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kept.notes() == []


class Broken(ScriptedExecutor):
    """Raises what no executor should, for one part."""

    def look(self, intent: Any) -> Any:
        if intent.part == "bad":
            raise ZeroDivisionError
        return super().look(intent)

    def prepare(self, wanted: Wanted, intent: Any, *more: Any) -> None:
        if intent.part == "worse":
            raise AttributeError("no such thing")
        super().prepare(wanted, intent, *more)


async def test_a_fault_with_one_part_harms_no_other_and_stands_in_the_report(tmp_path: Path) -> None:
    executor = Broken()
    node = NodeTasks("n", tmp_path, Journal(tmp_path / "journal.jsonl"), executor, "boot-0")
    node.open()
    node.keep("look at its parts", node.tick)
    node.apply(Desired(generation=1, wanted=[order(name, "run") for name in ("bad", "good", "worse")]))
    async with asyncio.timeout(20):
        while node.parts["good"].phase < Phase.RUNNING or node.parts["worse"].is_live:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        executor.finish("good")
        while node.parts["good"].is_live:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    assert node.parts["bad"].is_live
    end = node.parts["worse"].exit
    assert end is not None
    assert (end.cause, end.detail) == ("LAUNCH_FAILED", "this node could not start it (AttributeError: no such thing)")
    view = HostView("n", {}, "none", "self", "127.0.0.1", simulated=True)
    notes = ServerConnection(node, view, None, Renewal(tmp_path / "lease", "boot-0"), None)._conditions().notes  # type: ignore[arg-type]
    assert any(note.startswith("this agent's look at part bad failed") for note in notes)
    assert any(note.startswith("this agent's work for a part failed once (AttributeError") for note in notes)
    await node.close()
