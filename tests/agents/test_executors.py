"""Every executor keeps the same promises: nothing twice, an end for everything, and no word that is no sentence."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents import runtimes
from agents.isolation import run_as
from agents.link.server import Server
from agents.protocol import Exit, Phase, Wanted
from agents.runtimes import Executor, Sighting, Unlaunchable
from agents.runtimes.container import ContainerExecutor
from agents.runtimes.process import Ground, ProcessExecutor
from agents.runtimes.scripted import ScriptedExecutor
from agents.storage.bundle import BundleCache
from agents.supervisor import procfs
from agents.supervisor.fork_client import ForkClient
from agents.tasks.journal import Intent
from tests.agents.yard import order

Made = tuple[Executor, Callable[[Wanted], Intent]]


@pytest.fixture(params=["process", "scripted"])
async def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:  # type: ignore[misc]
    """An executor, and how to make an intent for it; all that still runs is reaped afterwards."""
    boot = procfs.boot_id()
    intents: list[Intent] = []

    def intent(wanted: Wanted) -> Intent:
        intents.append(Intent(wanted.part, wanted.attempt, wanted.epoch, boot, str(tmp_path / wanted.part)))
        return intents[-1]

    if request.param == "scripted":
        yield ScriptedExecutor(boot), intent
        return
    parent = ForkClient(tmp_path / "shim.log")
    parent.start()
    ground = Ground(
        boot_id=boot,
        bell=tmp_path / "bell",
        lease=tmp_path / "lease",
        fork_client=parent,
        bundles=BundleCache(tmp_path / "bundles", Server("http://127.0.0.1:1")),
        run_as=run_as.parse(str(os.geteuid())),
    )
    executor = ProcessExecutor(ground)
    yield executor, intent
    for each in intents:
        executor.stop(each, 0.0, "TEST_ENDED")
        await asyncio.to_thread(executor.reap, each)
    parent.close()


async def until(executor: Executor, intent: Intent, claim: Callable[[Sighting], bool]) -> Sighting:
    deadline = time.monotonic() + 60
    while not claim(seen := executor.look(intent)):
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(0.01)
    return seen


def a_part(*argv: str) -> Wanted:
    return order(uuid.uuid4().hex, *(argv or ("sleep", "300")))


def test_the_folder_scan_finds_every_executor() -> None:
    known = {"container": ContainerExecutor, "process": ProcessExecutor, "scripted": ScriptedExecutor}
    assert runtimes.discover() == known


async def test_a_launched_part_runs_and_a_stop_ends_it(made: Made) -> None:
    executor, intent_of = made
    wanted = a_part()
    intent = intent_of(wanted)
    executor.prepare(wanted, intent)
    executor.launch(intent)
    running = await until(executor, intent, lambda seen: seen.phase == Phase.RUNNING)
    assert running.exit is None
    assert not running.is_orphan
    executor.stop(intent, 1.0, "CANCELLED")
    ended = await until(executor, intent, lambda seen: seen.phase == Phase.ENDED)
    assert ended.exit is not None
    assert ended.exit.stopped
    assert executor.look(intent) == ended
    executor.discard(intent)


async def test_a_part_is_prepared_once(made: Made) -> None:
    executor, intent_of = made
    wanted = a_part()
    intent = intent_of(wanted)
    executor.prepare(wanted, intent)
    with pytest.raises(Unlaunchable, match="may have run before"):
        executor.prepare(wanted, intent)


async def test_a_part_without_a_command_is_refused(made: Made) -> None:
    executor, intent_of = made
    wanted = order(uuid.uuid4().hex)
    with pytest.raises(Unlaunchable, match="no command that could be executed"):
        executor.prepare(wanted, intent_of(wanted))


async def test_a_part_that_was_never_made_ready_is_forlorn_and_can_be_buried(made: Made) -> None:
    executor, intent_of = made
    intent = intent_of(a_part())
    assert executor.look(intent).is_orphan
    assert (await asyncio.to_thread(executor.reap, intent)).cause == "SUPERVISOR_LOST"


async def test_a_part_of_an_earlier_boot_has_ended_with_it(made: Made) -> None:
    executor, intent_of = made
    wanted = a_part()
    intent_of(wanted)
    old = Intent(wanted.part, "a", 1, "an-earlier-boot", "/nowhere")
    rebooted = Exit(cause="NODE_REBOOT", detail="the machine was rebooted while it ran", said=[("Rebooted", {})])
    assert executor.look(old).exit == rebooted
