"""The range in which a stage is said to start, and what became of those said before."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.explain.announced import announced, horizon
from scheduler.core.model.types import Expected, Snapshot, Turnout
from scheduler.core.world.lateness import everybody
from scheduler.decisions import canonical
from scheduler.predict.starts import ENOUGH, Announced, Starts, turnouts
from tests.core.worlds import NOW, node, running, stage, think, waits


def began(shares: list[float], *, shown: bool = True) -> list[Announced]:
    """Starts of which each was announced for in a thousand seconds and came after so many shares of them."""
    return [Announced("default", 0.0, 1_000.0, 100.0, 2_000.0, shown, began_at=1_000.0 * share) for share in shares]


def test_with_too_little_evidence_a_range_is_wide() -> None:
    said = announced({}, stage(1), at=1_000.0, since=0.0, late_at=1_200.0)
    assert (said.low_at, said.high_at) == (100, 2_000)
    assert announced({}, stage(1), at=1_000.0, since=0.0, late_at=3_500.0).high_at == 3_500
    assert said.known


def test_a_range_reaches_as_far_as_starts_like_it_did() -> None:
    seen = turnouts(began([0.5 + number / 100 for number in range(101)]), 1e6)
    said = announced(seen, stage(1), at=3_000.0, since=0.0, late_at=3_000.0)
    assert 1_770 <= said.low_at <= 1_830
    assert 4_170 <= said.high_at <= 4_260
    assert (said.held, said.seen) == (101, 101)


def test_one_that_is_too_wide_is_not_known() -> None:
    seen = turnouts(began([0.1, 20.0] * ENOUGH), 1e6)
    said = announced(seen, stage(1), at=3_000.0, since=0.0, late_at=3_000.0)
    assert not said.known
    assert said.basis.startswith("Unknown")
    assert announced(seen, stage(1), at=60.0, since=0.0, late_at=60.0).known, "of waits of a minute nothing is known"


def test_what_was_not_shown_is_learned_from_and_not_counted() -> None:
    seen = turnouts([*began([1.0] * ENOUGH, shown=False), *began([3.0])], 1e6)
    assert (seen["default", ""].held, seen["default", ""].seen) == (0, 1)
    assert seen["default", ""].low == 1.0


def test_who_waits_beyond_its_range_did_not_hold() -> None:
    waiting = [replace(one, began_at=None) for one in began([0.0] * 40)]
    early, late = (turnouts([*began([1.0] * ENOUGH), *waiting], now)["default", ""] for now in (900.0, 9_000.0))
    assert (early.held, early.seen) == (ENOUGH, ENOUGH)
    assert (late.held, late.seen) == (ENOUGH, ENOUGH + 40)
    assert early.high == 1.0
    assert late.high == 9.0, "a bad hour is noticed while it lasts"


def test_what_starts_in_a_moment_tells_nothing_of_what_starts_tonight() -> None:
    soon = [replace(one, at=30.0, began_at=1.0) for one in began([0.0] * ENOUGH)]
    seen = turnouts([*began([1.0] * ENOUGH), *soon], 1e6)
    assert announced(seen, stage(1), 1_000.0, 0.0, 0.0).high_at == 1_030
    assert round(announced(seen, stage(1), 30.0, 0.0, 0.0).low_at) == 1
    later = announced(seen, stage(1), 9_000.0, 0.0, 0.0)
    assert (later.low_at, later.high_at) == (900, 18_000), "of waits of hours nothing is known"
    assert later.seen == 2 * ENOUGH, "the rate is that of the pool"


def test_each_stage_counts_once_however_often_it_is_looked_at() -> None:
    """Seen: 16 of 180 samples. Most were the same stages, sampled again and again."""
    known = Starts()
    for number in range(ENOUGH):
        one = stage(number)
        for at in (500.0, 900.0, 1_300.0):
            known.announce(one, Expected(100.0, 2_000.0, "", at=at, since=0.0))
        known.began([one.id], 1_000.0)
        known.began([one.id], 5_000.0)
    seen = known.known(1e6)["default", "hour"]
    assert (seen.held, seen.seen) == (ENOUGH, ENOUGH)
    assert seen.low == seen.high == 2.0, "by the first range"


def test_who_left_the_queue_otherwise_says_nothing() -> None:
    known = Starts()
    known.announce(stage(1), Expected(0.0, 10.0, "", at=5.0))
    known.announce(stage(2), Expected(0.0, 10.0, "", at=5.0))
    known.forget({stage(2).id})
    known.began([stage(2).id], 3.0)
    assert known.known(1e6)[everybody("default")].seen == 1


def test_eight_of_ten_starts_hold_although_waits_are_never_as_planned() -> None:
    """Each range is judged by what was known when it was given."""
    dice, known, held = random.Random(7), Starts(), 0
    for number in range(1_000):
        one, since = stage(number), 10_000.0 * number
        said = announced(known.known(since), one, since + 1_000.0, since, since + 1_000.0)
        begins = since + 1_000.0 * dice.lognormvariate(-0.3, 0.7)
        known.announce(one, said)
        known.began([one.id], begins)
        held += said.low_at <= begins <= said.high_at
    assert 0.76 <= held / 1_000 <= 0.87


def test_the_engine_makes_ranges_from_what_it_is_told_and_a_replay_makes_the_same() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=250)
    snap = Snapshot(
        (node("a", 1),), (stage(1),), (going,), announced={("default", "minutes"): Turnout(0.5, 1.5, 41, 52)}
    )
    said = waits(think(snap))["s001"].expected
    assert (said.low_at, said.high_at, said.at) == (NOW + 50, NOW + 150, NOW + 100)
    told = canonical.decode("announced", canonical.encode(canonical.pieces(snap)["announced"][""]))
    again = canonical.whole({**canonical.pieces(snap), "announced": {"": told}})
    assert again.announced == snap.announced
    assert canonical.digest(think(again)) == canonical.digest(think(snap))


@given(
    low=st.none() | st.floats(0.0, 50.0),
    more=st.floats(0.0, 50.0),
    wait_s=st.floats(0.0, 1e6),
    late_s=st.floats(0.0, 1e6),
)
def test_a_range_is_in_order_and_around_its_point(low: float | None, more: float, wait_s: float, late_s: float) -> None:
    seen = {("default", horizon(wait_s)): Turnout(low, None if low is None else low + more)}
    said = announced(seen, stage(1), NOW + wait_s, NOW, NOW + late_s)
    assert NOW <= said.low_at <= said.at <= said.high_at
    assert said.known != said.basis.startswith("Unknown")
