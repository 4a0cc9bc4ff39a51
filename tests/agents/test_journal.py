"""The journal survives what happens to disks and processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.protocol import DeviceClaim, Exit
from agents.tasks import journal
from agents.tasks.journal import Ended, Gone, Intent, Journal, Line, Seen, Signalled, Started, runs_full

parts = st.sampled_from(["p1", "p2", "p3"])
lines: st.SearchStrategy[Line] = st.one_of(
    st.builds(Started, st.integers(1, 9), st.sampled_from(["boot-1", "boot-2"])),
    st.builds(Seen, st.integers(0, 9), st.sampled_from(["", "one"])),
    st.builds(Intent, parts, st.just("a"), st.integers(1, 3), st.just("boot-1"), st.just("/parts/p")),
    st.builds(Signalled, parts, st.integers(1, 3)),
    st.builds(Ended, parts, st.builds(Exit, code=st.integers(0, 255), detail=st.text(max_size=5))),
    st.builds(Gone, parts, st.just("a"), st.just(1), st.none()),
)


def told_by(written: list[Line]) -> journal.Past:
    past = journal.Past()
    for line in written:
        past.take(line)
    return past


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.lists(lines, min_size=1, max_size=12), st.data())
def test_a_journal_cut_anywhere_tells_a_prefix(tmp_path: Path, written: list[Line], data: st.DataObject) -> None:
    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    first = Journal(path)
    for line in written:
        first.append(line)
    first.close()
    size = path.stat().st_size
    kept = data.draw(st.integers(0, size))
    whole = path.read_bytes()[:kept].count(b"\n")
    os.truncate(path, kept)
    again = Journal(path)
    assert again.past == told_by(written[:whole])
    again.append(Seen(generation=77))
    again.close()
    assert journal.read(path)[0] == told_by([*written[:whole], Seen(generation=77)])


@given(st.lists(lines, max_size=20))
def test_the_shortest_journal_tells_the_same(written: list[Line]) -> None:
    past = told_by(written)
    assert told_by(list(past.lines())) == past


@given(st.lists(lines, max_size=20))
def test_folding_everything_twice_forgets_nothing(written: list[Line]) -> None:
    once, twice = told_by(written), told_by([*written, *written])
    assert once.intents.keys() | once.gone.keys() == twice.intents.keys() | twice.gone.keys()


def intent(part: str) -> Intent:
    claim = DeviceClaim("GPU-0", "gpu", "nvidia", "H100", 0, 1000, 1 << 30)
    return Intent(part, "a", 1, "boot", f"/parts/{part}", devices=[claim])


async def test_what_was_synced_is_on_disk_before_sync_returns(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    held = Journal(path)

    async def note(part: str) -> bool:
        held.append(intent(part))
        await held.sync()
        return part in journal.read(path)[0].intents

    assert all(await asyncio.gather(*(note(f"p{number}") for number in range(50))))
    held.close()


async def test_a_long_journal_is_compacted_and_forgets_nothing_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    held = Journal(path)
    held.append(intent("kept"))
    for generation in range(40_000):
        held.append(Seen(generation=generation))
        if generation % 10_000 == 0:
            await held.sync()
    await held.sync()
    assert path.stat().st_size < journal._COMPACT_ABOVE_BYTES
    held.append(intent("later"))
    await held.sync()
    past, _ = journal.read(path)
    assert set(past.intents) == {"kept", "later"}
    assert past.generation == 39_999
    held.close()


def test_tombstones_go_by_how_long_the_agent_ran_and_by_no_clock_that_is_set() -> None:
    past = told_by([Gone(f"p{number}") for number in range(journal.TOMBSTONES + 10)])
    assert len(past.gone) == journal.TOMBSTONES + 10, "all of one moment"
    past.take(Gone("later", lived_s=journal.TOMBSTONES_KEPT_S + 1))
    assert len(past.gone) == journal.TOMBSTONES
    assert "p9" not in past.gone
    assert "later" in past.gone
    for number in range(journal.MOST_TOMBSTONES + 5):
        past.take(Gone(f"q{number}", lived_s=journal.TOMBSTONES_KEPT_S + 2))
    assert len(past.gone) == journal.MOST_TOMBSTONES


@given(st.integers(0, 7), st.binary(min_size=1, max_size=3), st.integers(0, 10_000))
def test_a_line_that_changed_on_its_disk_is_known_from_its_checksum(
    tmp_path_factory: pytest.TempPathFactory, which: int, other: bytes, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "journal.jsonl"
    path.unlink(missing_ok=True)
    held = Journal(path)
    for number in range(8):
        held.append(intent(f"part-{number}"))
    held.close()
    lines = path.read_bytes().splitlines()
    at %= len(lines[which])
    spoilt = lines[which][:at] + other + lines[which][at + len(other) :]
    path.write_bytes(b"\n".join([*lines[:which], spoilt, *lines[which + 1 :]]) + b"\n")
    past, _ = journal.read(path)
    kept = {f"part-{number}" for number in range(8) if number != which}
    assert kept <= set(past.intents)
    assert set(past.intents) <= kept | {f"part-{which}"}, "no part that never was"


def test_lines_of_before_checksums_are_read_and_lines_of_now_by_agents_of_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(msgspec.json.encode(intent("old")) + b"\n")
    held = Journal(path)
    assert set(held.past.intents) == {"old"}
    held.append(intent("new"))
    held.close()
    plain = [msgspec.json.decode(line, type=journal.Line) for line in path.read_bytes().splitlines()]
    assert [each.part for each in plain if isinstance(each, Intent)] == ["old", "new"]


async def test_what_is_remembered_is_not_written_anew_with_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Journal(tmp_path / "journal.jsonl")
    for number in range(journal.TOMBSTONES):
        held.append(Gone(f"part-{number}", "attempt", 1, Exit(code=0, detail="x" * 300)))
    await held.sync()
    asked = []
    shorter = held._shorter
    monkeypatch.setattr(held, "_shorter", lambda: asked.append(1) or shorter())
    for number in range(100):
        held.append(Gone(f"more-{number}"))
        await held.sync()
    assert len(asked) <= 1
    held.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a full disk needs a mount (run the tests as root, or in a container with CAP_SYS_ADMIN)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_on_a_full_disk_the_reserve_still_records_ends(small_disk: Path) -> None:
    held = Journal(small_disk / "journal.jsonl")
    held.append(intent("running"))
    await held.sync()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            continue
    for number in range(200):
        held.append(Ended("running", Exit(code=number % 256, detail="x" * 50)))
        await held.sync()
    assert held.disk_pressure
    assert journal.read(held.path)[0].ends["running"].code == 199
    filler.unlink()
    held.recheck_disk()
    assert not held.disk_pressure
    held.close()


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 24), st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_a_disk_runs_full_before_it_is_and_for_a_while_after(
    blocks: int, free: int, files: int, left: int, did: bool
) -> None:
    free, left = min(free, blocks), min(left, files)
    disk = os.statvfs_result((4096, 4096, blocks, free, free, files, left, left, 0, 255))
    if free == 0 and blocks >= 50:
        assert runs_full(disk, did)
    if runs_full(disk, False):
        assert runs_full(disk, True), "there must be more room than that before it counts as room again"
    if blocks and free > blocks // 25 + 1 and (not files or left > files // 25 + 1):
        assert not runs_full(disk, did)
