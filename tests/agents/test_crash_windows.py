"""The agent is killed between two steps of a start: what it left is either no part at all or a whole one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents.protocol import GangMember, Phase
from tests.agents.conftest import ROOT, Hands
from tests.agents.yard import order

# Replaces what is named in DIES_AT by the end of the process, as a crash or a power cut there would be. It reaches the
# agent before its own code; nobody else of its family calls what is named.
DIES = """
import os, signal
from importlib import import_module
module, _, names = os.environ.get("DIES_AT", "").partition(":")
if module:
    *path, last = names.split(".")
    holder = import_module(module)
    for name in path:
        holder = getattr(holder, name)
    setattr(holder, last, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
"""


def dies_at(hands: Hands, folder: Path, place: str) -> None:
    (folder / "sitecustomize.py").write_text(DIES)
    hands.environment |= {"PYTHONPATH": f"{folder}:{ROOT}", "DIES_AT": place}


def lives(hands: Hands) -> None:
    hands.environment["DIES_AT"] = ""


def gang_order(part: str, folder: Path) -> object:
    """A rank of a gang that saves checkpoints: the node puts files of both kinds into its folders."""
    script = f'echo ran >> {folder}/ran; cat "$YARD_HOSTFILE"'
    gang = [GangMember("one", "10.0.0.1"), GangMember("two", "10.0.0.2")]
    return order(part, "sh", "-c", script, gang=gang, nodes=["one", "two"], checkpoint_dir=str(folder / "saved"))


@pytest.mark.parametrize("place", ["agents.tasks.gang:write", "agents.storage.checkpoint_watch:begin"])
def test_a_part_whose_files_were_not_all_there_never_runs(
    hands: Hands, part: Callable[[], str], tmp_path: Path, place: str
) -> None:
    dies_at(hands, tmp_path, place)
    hands.start()
    name = part()
    hands.yard.want(hands.name, gang_order(name, tmp_path))  # type: ignore[arg-type]
    assert hands.process is not None
    assert hands.process.wait(60) == -9
    assert not (hands.state / "parts" / name / "order.json").exists()
    lives(hands)
    hands.start()
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.cause == "SUPERVISOR_LOST"
    assert "ended before its command was started" in end.detail
    assert not (tmp_path / "ran").exists()


def test_a_part_that_was_ready_is_launched_by_the_next_agent_with_all_its_files(
    hands: Hands, part: Callable[[], str], tmp_path: Path
) -> None:
    dies_at(hands, tmp_path, "agents.supervisor.fork_client:ForkClient.fork")
    hands.start()
    name = part()
    hands.yard.want(hands.name, gang_order(name, tmp_path))  # type: ignore[arg-type]
    assert hands.process is not None
    assert hands.process.wait(60) == -9
    lives(hands)
    hands.start()
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert (end.code, end.cause) == (0, "")
    assert hands.yard.phase(hands.name, name, Phase.ENDED)
    assert (tmp_path / "ran").read_text() == "ran\n"
    hands.yard.wait(lambda: b"10.0.0.2 slots=1" in hands.yard.logs[(name, 0, "out")])
