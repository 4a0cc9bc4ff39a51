"""The log of decisions: what is read back is what was written, and deciding once more gives the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.model.types import Plan, Project, Quota, Snapshot
from scheduler.decisions import canonical, code, log, packing, replay
from scheduler.decisions.difference import compare, over
from scheduler.decisions.log import Record, Writer
from scheduler.profiles import named
from tests.core.worlds import NOW, begun, ended, node, running, stage, think

ROOT = Path(__file__).resolve().parents[2]


def record(number: int, world: Snapshot, plan: Plan, at: float, profile: str = "hybrid") -> Record:
    names = {"default": profile}
    return Record(number, at, code.version(), names, replay.specs_of(names), world, plan, canonical.digest(plan))


def lives(profile: str = "hybrid", cycles: int = 9) -> list[Record]:
    """A small yard that moves on: arrivals, starts, ends, promises, a preemption."""
    world = Snapshot(
        (node("b", 2), node("a", 4, npus=1)),
        tuple(stage(i, gpus=1 + i % 3, p50=30.0 * i) for i in range(1, 9)),
        (running(7, {"b": ["gpu0"]}, priority=250),),
        projects=(Project("lab", 2.0, 17.5), Project("other", 1.0, 0.1)),
        quotas=(Quota("lab", "gpu", 9000), Quota("lab", "cpu", None)),
        speeds={("train", "H100"): 1.25, ("infer", "910B"): 0.7},
    )
    found, now = [], NOW
    for number in range(1, cycles + 1):
        plan = think(world, profile, now)
        found.append(record(number, world, plan, now, profile))
        world = begun(world, plan, now)
        if number % 3 == 0 and world.running:
            world = ended(world, world.running[0].id)
        world = replace(
            world, waiting=(*world.waiting, stage(20 + number, gpus=2, priority=1000 if number == 4 else 500))
        )
        now += 17.3
    return found


def written(folder: Path, records: list[Record], whole_every: int = 4) -> list[int]:
    writer = Writer(folder, whole_every)
    return [writer.append(one) for one in records]


@pytest.mark.parametrize("profile", ["hybrid", "static", "dynamic"])
def test_what_is_read_back_is_what_was_written(tmp_path: Path, profile: str) -> None:
    records = lives(profile)
    written(tmp_path, records)
    back = list(log.read(tmp_path))
    assert [one.id for one in back] == [one.id for one in records]
    for one, other in zip(back, records, strict=True):
        assert canonical.plan_bytes(one.plan) == canonical.plan_bytes(other.plan)
        assert canonical.pieces(one.snapshot) == canonical.pieces(other.snapshot)
        assert one.at == other.at
    assert len(log.segments(tmp_path)) == 3


def test_a_world_without_measured_speeds_is_read_back(tmp_path: Path) -> None:
    world = Snapshot((node("a", 1),), (stage(1),))
    written(tmp_path, [record(1, world, think(world), NOW)])
    (one,) = log.read(tmp_path)
    assert (one.snapshot.speeds, replay.replay(one).same) == ({}, True)


def test_a_change_is_smaller_than_a_world(tmp_path: Path) -> None:
    sizes = written(tmp_path, lives(), whole_every=100)
    assert max(sizes[1:]) < sizes[0]


def test_a_decision_is_found_by_its_number(tmp_path: Path) -> None:
    records = lives()
    written(tmp_path, records)
    found = log.find(tmp_path, 6)
    assert found is not None
    assert found.digest == records[5].digest
    assert log.find(tmp_path, 99) is None


def test_segments_of_two_writers_are_read_as_one(tmp_path: Path) -> None:
    one, two = Writer(tmp_path), Writer(tmp_path)
    for each in lives():
        (one if each.id % 2 else two).append(each)
    assert [each.id for each in log.read(tmp_path)] == list(range(1, 10))
    assert log.find(tmp_path, 4) is not None


def test_a_frame_that_was_cut_off_spoils_nothing_before_it(tmp_path: Path) -> None:
    written(tmp_path, lives(), whole_every=100)
    (path,) = log.segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    assert [one.id for one in log.read(tmp_path)] == list(range(1, 9))


def test_old_segments_go_first_by_age_then_by_size(tmp_path: Path) -> None:
    written(tmp_path, lives(), whole_every=3)
    first, second, third = log.segments(tmp_path)
    os.utime(first, (NOW - 10 * 86_400,) * 2)
    os.utime(second, (NOW,) * 2)
    assert log.prune(tmp_path, NOW) == 1
    assert log.segments(tmp_path) == [second, third]
    assert log.prune(tmp_path, NOW, keep_bytes=1) == 1
    assert log.segments(tmp_path) == [third]


def test_any_profile_decides_the_same_once_more(tmp_path: Path) -> None:
    for profile in ("hybrid", "static", "dynamic", "fifo"):
        written(tmp_path / profile, lives(profile))
        assert all(replay.replay(one).same for one in log.read(tmp_path / profile))


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_a_fresh_process_with_another_hash_seed_decides_the_same(tmp_path: Path, seed: str) -> None:
    written(tmp_path, lives())
    done = subprocess.run(
        [sys.executable, "-m", "scheduler.cli", "replay", str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONHASHSEED": seed, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "9 of 9 decisions came out the same" in done.stdout


def test_another_outcome_is_told(tmp_path: Path) -> None:
    records = lives()
    written(tmp_path, [replace(records[0], digest="0" * 32)])
    (one,) = log.read(tmp_path)
    assert not replay.replay(one).same


def test_a_record_of_other_code_says_so(tmp_path: Path) -> None:
    written(tmp_path, [replace(lives()[0], code="of yesterday")])
    (one,) = log.read(tmp_path)
    assert not replay.replay(one).same_code


def test_two_profiles_differ_over_a_log(tmp_path: Path) -> None:
    written(tmp_path, lives())
    week, found = over(log.read(tmp_path), None, named("fifo"))
    assert week.decisions == 9
    assert week.different == len(found) > 0
    same, nothing = over(log.read(tmp_path), None, named("hybrid"))
    assert (same.different, nothing, same.earlier_s) == (0, [], 0.0)
    assert not compare(lives()[0].plan, lives()[0].plan).any


def test_what_was_packed_is_unpacked_and_damage_is_told() -> None:
    method, packed = packing.pack(b"plan" * 100)
    assert packing.unpack(method, packed) == b"plan" * 100
    assert len(packed) < 100
    with pytest.raises(ValueError, match="damaged"):
        packing.unpack(method, packed[:-7] + b"garbage")
    with pytest.raises(ValueError, match="method 9"):
        packing.unpack(9, packed)
    assert packing.unpack(packing.ZLIB, b"x\x9c\x03\x00\x00\x00\x00\x01") == b""


def test_a_cycle_that_told_some_comes_out_the_same(tmp_path: Path) -> None:
    """The record names only those whom the cycle told why they wait, and so does the plan that is made once more."""
    records = []
    for one in lives():
        some = replace(one.plan, waits=one.plan.waits[::2])
        records.append(replace(one, plan=some, digest=canonical.digest(some), partial=True))
    assert any(len(one.plan.waits) < len(other.plan.waits) for one, other in zip(records, lives(), strict=True))
    written(tmp_path, records)
    back = list(log.read(tmp_path))
    assert [one.plan.waits for one in back] == [one.plan.waits for one in records]
    assert all(replay.replay(one).same for one in back)
    waits = back[-1].plan.waits
    other = replace(back[-1], plan=replace(back[-1].plan, waits=waits[:-1]))
    assert not replay.replay(other).same


def test_what_stayed_the_same_object_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = lives()[0]
    world = first.snapshot
    later = replace(world, waiting=(*world.waiting[:-1], stage(99)), projects=(Project("lab", 2.0, 18.5),))
    asked: list[str] = []
    key = canonical.key
    writer = Writer(tmp_path)
    writer.append(first)
    monkeypatch.setattr(canonical, "key", lambda piece: asked.append(key(piece)) or key(piece))
    writer.append(record(2, later, first.plan, NOW + 1))
    assert sorted(asked) == sorted([world.waiting[-1].id, "s099", "lab", "lab", "other"])
    back = list(log.read(tmp_path))
    assert canonical.pieces(back[1].snapshot) == canonical.pieces(later)


def test_a_large_world_is_not_written_anew_for_a_few_of_its_stages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(log, "LARGE", 1)
    sizes = written(tmp_path, lives(cycles=30), whole_every=2)
    paths = log.segments(tmp_path)
    assert 1 < len(paths) < 15
    assert [one.id for one in log.read(tmp_path)] == list(range(1, 31))
    changes = sizes[1 : int(paths[1].name[:12]) - 1]
    assert sum(changes) >= sizes[0] > sum(changes[:-1])
