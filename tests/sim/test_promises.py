"""How promises and bursts are counted by the bench."""

from __future__ import annotations

import itertools

import pytest

from bench.engine import promises
from bench.engine.promises import BURST, Range, judge, recovery, urgent
from scheduler.core.model.lifecycle import State
from scheduler.profiles import named
from scheduler.sim.cluster import cluster
from scheduler.sim.store import StageRecord
from scheduler.sim.traces import Arrival
from tests.core.worlds import stage


def entry(name: str, came: float, began: float | None) -> StageRecord:
    one = stage(1, id=name, submitted_at=came)
    return StageRecord(one, State.COMPLETED, set(), started_at=began)


def test_a_promise_is_kept_by_who_begins_by_its_end() -> None:
    entries = [
        entry("early", 0.0, 50.0),
        entry("inside", 0.0, 150.0),
        entry("late", 0.0, 202.0),
        entry("never", 0.0, None),
        entry("unpromised", 0.0, 10.0),
        entry("at-once", 0.0, 0.0),
    ]
    said = {name: Range(0.0, 100.0, 200.0) for name in ("early", "inside", "late", "never", "at-once")}
    kept = judge([*entries, entry("open", 900.0, None)], {**said, "open": Range(900.0, 950.0, 1_100.0)}, 1_000.0)
    assert kept.waited == 6, "one began in the moment in which it came"
    assert kept.given_pct == pytest.approx(83.33)
    assert kept.kept_pct == 50
    assert kept.inside_pct == 25
    assert (kept.width_s, kept.ahead_s) == (100, 100)


def test_a_burst_is_over_when_the_mean_wait_is_what_it_was() -> None:
    """One urgent job each minute that waits a second; of the burst at 6000 the last one begins after five minutes."""
    stream = [entry(f"urgent-stream-00-{i:04}", 60.0 * i, 60.0 * i + 1.0) for i in range(200)]
    burst = [entry(f"urgent-burst-00-{i:04}", 6_000.0, 6_000.0 + 300.0 * (i == 7)) for i in range(BURST)]
    normal_s, back_s = recovery([*stream, *burst], [6_000.0])
    assert normal_s == pytest.approx(1.0)
    assert back_s == pytest.approx(360, abs=2), "a minute after it began it does not count any more"
    calm = [entry(f"urgent-burst-00-{i:04}", 6_000.0, 6_001.0) for i in range(BURST)]
    assert recovery([*stream, *calm], [6_000.0])[1] == 0
    stuck = [entry(one.stage.id, one.stage.submitted_at, None) for one in stream]
    normal_s, back_s = recovery([*stuck, *calm], [6_000.0])
    assert normal_s == pytest.approx(3_030), "who never began has waited until the burst"
    assert back_s == 86_400, "and waits on"


def test_the_burst_comes_at_once_and_the_stream_each_minute() -> None:
    jobs = urgent([10_000.0], ["a", "b"])
    burst = [one for one in jobs if "burst" in one.id]
    assert len(burst) == BURST
    assert {one.submit_s for one in burst} == {10_000.0}
    assert {one.gpus for one in jobs} == {1}
    stream = sorted(one.submit_s for one in jobs if "stream" in one.id)
    assert {b - a for a, b in itertools.pairwise(stream)} == {60.0}
    assert len({one.id for one in jobs}) == len(jobs)


def test_without_promises_it_is_what_the_engine_expects_of_a_newcomer() -> None:
    """The second waits for the first, of which nothing is known: three tenths of a day, and a range from a tenth of
    that wait on."""
    jobs = [Arrival(f"s{i}", float(i), 500.0, 4, user=f"u{i}") for i in range(2)]
    world = promises.Watched(cluster("1x4"), jobs, named("dynamic"))
    world.run()
    assert world.ranges["s1"].made_at == 1.0
    assert world.ranges["s1"].low_at == pytest.approx(1.0 + 0.1 * (0.3 * 86_400 - 1.0))
    assert "s0" not in world.ranges
