"""Who asked for disk space is held to it: counted without being led astray, noted, and ended if it goes on."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.isolation.beneath import OWN
from agents.protocol import HostSample, Phase
from agents.storage import disk_use
from agents.storage.disk_use import DiskUse, measure, room_bytes
from tests.agents.conftest import Hands
from tests.agents.yard import Yard, order

Names = Callable[[], str]
MIB = 1 << 20


def fill(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_what_is_counted_is_its_own_files_each_once(tmp_path: Path) -> None:
    one = fill(tmp_path / "tmp" / "deep" / "one", MIB)
    os.link(one, tmp_path / "tmp" / "again")
    fill(tmp_path / "tmp" / "inputs" / "laid-out", 5 * MIB)
    elsewhere = fill(tmp_path / "elsewhere" / "of-others", 9 * MIB)
    (tmp_path / "tmp" / "link").symlink_to(elsewhere)
    (tmp_path / "tmp" / "folder").symlink_to(elsewhere.parent)
    os.mkfifo(tmp_path / "tmp" / "pipe")
    found = measure((tmp_path / "tmp", tmp_path / "missing"), OWN)
    assert (found.used_bytes, found.is_part) == (MIB, False)


def test_a_file_with_holes_counts_what_it_takes_up(tmp_path: Path) -> None:
    with open(fill(tmp_path / "tmp" / "sparse", 4096), "r+b") as file:
        file.truncate(1 << 40)
    assert measure((tmp_path / "tmp",), OWN).used_bytes <= MIB


def test_too_many_files_are_counted_in_part_and_said(tmp_path: Path) -> None:
    for i in range(20):
        fill(tmp_path / "tmp" / str(i % 4) / str(i), 4096)
    found = measure((tmp_path / "tmp",), OWN, most=10)
    assert found.is_part
    assert 0 < found.used_bytes < 20 * 4096
    disks = DiskUse()
    assert disks.due(["p"], 0.0) == ["p"]
    disks._accounts["p"].found = found
    note = disks.note("p", MIB)
    assert note is not None
    assert "not all of its files" in note


def test_only_two_looks_in_a_row_end_it_and_the_next_look_waits(tmp_path: Path) -> None:
    disks = DiskUse(every_s=1000.0)
    big = fill(tmp_path / "tmp" / "big", 2 * MIB)

    def look() -> bool:
        disks.look("p", MIB, str(tmp_path), OWN)
        return disks.is_to_end("p")

    assert disks.due(["p"], time.monotonic()) == ["p"]
    assert not look()
    assert disks.over("p", MIB) == ("DiskOver", {"used_bytes": 2 * MIB, "given_bytes": MIB})
    assert disks.due(["p"], time.monotonic()) == []
    big.unlink()
    assert not look()
    assert disks.over("p", MIB) is None
    assert disks.due(["p"], time.monotonic() + 999.0) == []
    fill(big, 2 * MIB)
    assert not look()
    assert look()
    assert disks.due([], 0.0) == []
    assert disks.used_bytes("p") == 0, "a part that has ended is forgotten"


def test_why_it_was_ended_outlives_the_agent_and_no_nonsense_is_read(tmp_path: Path) -> None:
    over = ("DiskOver", {"used_bytes": 2, "given_bytes": 1})
    disk_use.remember(str(tmp_path), over)
    assert disk_use.remembered(str(tmp_path)) == over
    for text in ("[]", "{}", '{"used_bytes": -1, "given_bytes": 1}', "[" * 9999):
        (tmp_path / disk_use.FILE).write_text(text)
        assert disk_use.remembered(str(tmp_path)) is None


def test_what_parts_use_of_what_they_asked_for_is_no_loss_of_room() -> None:
    assert room_bytes(100, [(30, 50), (70, 50)]) == 180


@pytest.fixture
def node(model: Yard, tmp_path: Path) -> Iterator[Hands]:
    made = Hands(model, tmp_path, f"disk-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    made.environment["YARD_AGENT_DISK_LOOK_S"] = "1"
    made.start("--run-as", "root" if os.geteuid() == 0 else "self")
    yield made
    made.clear()


def test_a_part_that_fills_the_disk_is_warned_and_then_ended(node: Hands, part: Names) -> None:
    side = node.yard.side(node.name)
    greedy, modest = part(), part()
    script = "head -c {} /dev/zero > $TMPDIR/data; sync; sleep 300"
    node.yard.want(node.name, order(greedy, "sh", "-c", script.format(9 * MIB), disk_bytes=4 * MIB))
    node.yard.want(node.name, order(modest, "sh", "-c", script.format(MIB), disk_bytes=4 * MIB))
    end = node.yard.ended(node.name, greedy).exit
    assert end is not None
    assert (end.cause, end.stopped) == ("OUT_OF_DISK", False)
    assert end.detail == "its files took up 9 MiB of the disk; it asked for 4 MiB"
    assert side.here[modest].phase == Phase.RUNNING
    assert side.here[modest].notes == []
    assert side.inventory is not None
    assert side.inventory.disk_bytes > 0


def test_an_agent_that_tells_nothing_of_its_disk_is_understood() -> None:
    assert HostSample().disk_room_bytes is None
