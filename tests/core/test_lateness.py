"""Promises that rest on what became of those before them."""

from __future__ import annotations

import random
from dataclasses import replace

from scheduler.core.model.types import Snapshot, Stage
from scheduler.core.world.lateness import everybody, promise_class, slack_s
from scheduler.predict.lateness import ENOUGH, Lateness
from tests.core.worlds import NOW, node, running, stage, think, waits


def promised(known: Lateness, one: Stage, start_at: float, late_at: float = 1e12) -> None:
    known.promised(one.id, promise_class(one), start_at, late_at)


def told(late_s: list[float], late_at: float = 1e12) -> Lateness:
    """One single-device promise after the other, each this much late."""
    known = Lateness()
    for number, late in enumerate(late_s):
        one, at = stage(number), 1000.0 * number
        promised(known, one, at, late_at)
        known.began([one.id], at + late)
    return known


def test_a_range_ends_where_nine_of_ten_of_the_latest_promises_were_kept() -> None:
    known = told([float(late) for late in range(100)])
    assert known.slack(1e6)[promise_class(stage(1))] == 90


def test_too_few_say_nothing() -> None:
    assert not told([50.0] * (ENOUGH - 1)).slack(1e6)
    assert told([50.0] * ENOUGH).slack(1e6)


def test_who_waits_beyond_the_point_is_later_than_so() -> None:
    """Twenty that were kept say little when as many wait a thousand seconds too long already."""
    known = told([10.0] * ENOUGH)
    for number in range(100, 120):
        promised(known, stage(number), 50_000.0)
    assert known.slack(51_000.0)[promise_class(stage(1))] >= 1000


def test_wide_gangs_have_a_count_of_their_own_and_others_have_that_of_all() -> None:
    known = told([10.0] * ENOUGH)
    for number in range(100, 100 + ENOUGH):
        wide = stage(number, gpus=8)
        promised(known, wide, 1000.0 * number)
        known.began([wide.id], 1000.0 * number + 700.0)
    seen = known.slack(1e6)
    assert slack_s(seen, stage(1)) == 10
    assert slack_s(seen, stage(2, gpus=8)) == 700
    assert slack_s(seen, stage(3, gpus=4)) == seen[everybody("default")] == 700
    assert slack_s({}, stage(1)) is None


def test_nine_of_ten_are_kept_although_times_change() -> None:
    """Lateness doubles every two hundred promises; each is judged by what was known when it was given."""
    dice, known, kept = random.Random(7), Lateness(), 0
    for number in range(2000):
        one, at = stage(number), 1000.0 * number
        slack = slack_s(known.slack(at), one) or 0.0
        late = dice.expovariate(1.0) * 10.0 * 2 ** (number / 200)
        promised(known, one, at, at + slack)
        known.began([one.id], at + late)
        kept += late <= slack
    assert 0.87 <= kept / 2000 <= 0.95


def test_the_engine_makes_ranges_from_what_it_is_told() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=250)
    snap = Snapshot((node("a", 1),), (stage(1),), (going,))
    seen = {promise_class(stage(1)): 900.0}
    planned = waits(think(replace(snap, lateness=seen)))["s001"].planned
    assert (planned.start_at, planned.late_at) == (NOW + 100, NOW + 1000)
    assert waits(think(snap))["s001"].planned.late_at == NOW + 250, "the bad case of what runs, where nothing is known"


def test_a_range_is_never_narrower_than_a_minute() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=250)
    snap = Snapshot((node("a", 1),), (stage(1),), (going,), lateness={everybody("default"): -500.0})
    planned = waits(think(snap))["s001"].planned
    assert planned.late_at - planned.start_at == 60
