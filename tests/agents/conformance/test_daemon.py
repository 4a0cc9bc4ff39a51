"""An engine with a daemon: its containers are nobody's children here, and end all the same when they should."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator

import pytest

from agents.protocol import Phase
from agents.resources import adjust
from agents.resources.adjust import Setting
from agents.supervisor import procfs
from agents.tasks.journal import Intent
from tests.agents.conformance.conftest import Stand

pytestmark = pytest.mark.parametrize("stand", ["daemon"], indirect=True)


def has_ended(intent: Intent) -> bool:
    """Whether the shim has written its verdict."""
    return os.path.exists(f"{intent.folder}/exit.json")


def daemon_of(stand: Stand) -> subprocess.Popen[bytes]:
    return subprocess.Popen([str(stand.folder / "bin" / "docker"), "daemon"])


@pytest.fixture
async def served(stand: Stand) -> AsyncIterator[Stand]:
    """A stand whose daemon runs."""
    with daemon_of(stand) as daemon:
        yield stand
        for intent in stand.intents:
            await asyncio.to_thread(stand.executor.reap, intent)
        daemon.kill()


async def test_its_exit_code_is_told(served: Stand) -> None:
    intent = served.shell("echo out; exit 3")
    assert (await served.end(intent)).code == 3
    assert served.said(intent) == "out\n"


async def test_it_is_no_child_of_its_shim_and_ends_with_its_notice(served: Stand) -> None:
    intent = served.shell('trap "cat $YARD_STOP_FILE; exit 0" TERM; echo ready; while :; do sleep 0.02; done')
    await served.saying(intent, "ready")
    inside = set(served.left(intent)) - set(procfs.descendants(served.shim(intent)["pid"]))
    assert inside
    served.executor.stop(intent, 20.0, "PREEMPTED")
    end = await served.end(intent)
    assert (end.code, end.stopped) == (0, True)
    assert "PREEMPTED" in served.said(intent)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_one_whose_monitor_is_gone_or_hangs_ends_with_its_lease_and_without_an_agent(
    served: Stand, number: int
) -> None:
    intent = served.shell('trap "" TERM; echo ready; while :; do sleep 0.05; done', lease_s=1.0, grace_s=0.5)
    await served.saying(intent, "ready")
    os.kill(served.shim(intent)["main"], number)
    async with asyncio.timeout(30):
        while not has_ended(intent):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)
    assert served.left(intent) == []
    assert served.executor.look(intent).phase == Phase.ENDED


async def test_one_that_ignores_sigterm_is_gone_before_its_shim_loses_sight(served: Stand) -> None:
    """No agent is needed for that: the monitor removes it half a second before its own end."""
    intent = served.shell('trap "" TERM; echo ready; while :; do sleep 0.05; done')
    await served.saying(intent, "ready")
    served.executor.stop(intent, 0.0, "CANCELLED")
    async with asyncio.timeout(20):  # nobody looks: an agent that looks would remove it, too
        while not has_ended(intent):  # noqa: ASYNC110 - the shim writes a file
            await asyncio.sleep(0.02)
    assert served.left(intent) == []
    assert (await served.end(intent)).stopped


async def test_without_an_agent_the_container_of_a_killed_monitor_is_gone_with_its_shim(served: Stand) -> None:
    """A lease fences by this: nobody is left who would look, and the daemon knows of no lease."""
    intent = served.shell("echo ready; sleep 300")
    await served.saying(intent, "ready")
    inside = set(served.left(intent)) - set(procfs.descendants(served.shim(intent)["pid"]))
    os.kill(served.shim(intent)["main"], signal.SIGKILL)
    async with asyncio.timeout(20):
        while not has_ended(intent):  # noqa: ASYNC110 - the shim writes a file
            await asyncio.sleep(0.02)
    assert inside
    assert not any(procfs.start_time(pid) for pid in inside)


async def test_the_container_of_a_killed_monitor_is_removed_before_its_end_is_told(served: Stand) -> None:
    intent = served.shell("echo ready; sleep 300")
    await served.saying(intent, "ready")
    inside = set(served.left(intent)) - set(procfs.descendants(served.shim(intent)["pid"]))
    os.kill(served.shim(intent)["main"], signal.SIGKILL)
    await served.end(intent)
    assert inside
    assert not any(procfs.start_time(pid) for pid in inside)


async def test_an_adjustment_reaches_it(served: Stand) -> None:
    intent, core = served.shell("sleep 300 & echo ready; sleep 300"), min(os.sched_getaffinity(0))
    await served.saying(intent, "ready")
    reach = served.executor.reach(intent)
    assert await asyncio.to_thread(adjust.apply, reach, Setting(), Setting(cpus=(core,))) == []
    assert {frozenset(os.sched_getaffinity(pid)) for pid in served.left(intent)} == {frozenset({core})}
