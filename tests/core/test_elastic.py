"""Elastic sizes: nothing that somebody can use stays idle, the short end first, and a stop must be worth it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.resources.elastic import Elastic, ScalingCurve, Sizing, allot

SQRT = ScalingCurve({1: 1.0, 2: 1.4, 4: 2.0, 8: 2.8, 16: 4.0})
LINEAR = ScalingCurve({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0})


def test_a_lonely_stage_grows_as_far_as_it_gains() -> None:
    assert allot([Elastic("a", SQRT)], 64) == {"a": 16}
    assert allot([Elastic("a", ScalingCurve({1: 1.0, 2: 1.5, 4: 1.2}))], 64) == {"a": 2}, (
        "four would be slower than two"
    )


def test_what_scales_better_gets_more() -> None:
    sizes = allot([Elastic("flat", SQRT, left_s=100), Elastic("steep", LINEAR, left_s=100)], 10)
    assert sizes == {"flat": 2, "steep": 8}


def test_everybody_starts_before_anybody_grows_where_curves_bend() -> None:
    assert allot([Elastic(name, SQRT, left_s=100) for name in "abcd"], 4) == dict.fromkeys("abcd", 1)


def test_what_will_soon_be_done_goes_first() -> None:
    near, far = Elastic("near", LINEAR, left_s=10), Elastic("far", LINEAR, left_s=10_000)
    assert allot([far, near], 8) == {"near": 8, "far": 0}
    assert sum(allot([far, near], 8, Sizing(urgency=0.0)).values()) == 8


def test_a_running_stage_shrinks_before_a_newcomer_waits() -> None:
    old = Elastic("old", SQRT, size=16, left_s=1000)
    assert allot([old, Elastic("new", SQRT, left_s=1000)], 16) == {"old": 8, "new": 8}


def test_nobody_is_resized_again_right_away_nor_for_little() -> None:
    fresh = Elastic("a", SQRT, size=8, left_s=1000, since_s=10)
    assert allot([fresh], 16) == {"a": 8}
    flat = ScalingCurve({8: 2.8, 16: 2.9})
    assert allot([Elastic("a", flat, size=8, left_s=1000)], 16) == {"a": 8}, "a gain of 4 % is not worth a stop"
    ending = Elastic("a", SQRT, size=8, left_s=100, restart_s=30)
    assert allot([ending], 16) == {"a": 8}, "it is done before the stop has paid"
    assert allot([Elastic("a", SQRT, size=8, left_s=10_000)], 16) == {"a": 16}


def test_sizes_beyond_what_was_explored_are_not_trusted() -> None:
    assert allot([Elastic("a", SQRT, explored=4)], 16) == {"a": 4}
    assert allot([Elastic("a", ScalingCurve({4: 1.0, 8: 2.0}), explored=1)], 16) == {"a": 4}, (
        "the least size may be tried"
    )


def test_lost_devices_shrink_even_the_fresh() -> None:
    stages = [Elastic(name, SQRT, size=8, since_s=0) for name in "ab"]
    assert sum(allot(stages, 8).values()) <= 8


def test_a_curve_says_what_it_needs() -> None:
    for rates in ({}, {0: 1.0}, {1: 0.0}, {1: float("nan")}):
        with pytest.raises(ValueError, match="a positive rate for at least one size"):
            ScalingCurve(rates)


CURVES = st.dictionaries(st.integers(1, 12), st.floats(0.1, 50.0), min_size=1, max_size=5).map(ScalingCurve)


@given(
    drawn=st.lists(
        st.tuples(CURVES, st.floats(1.0, 1e6) | st.none(), st.booleans(), st.sampled_from([0.0, 1e5])), max_size=8
    ),
    devices=st.integers(0, 40),
)
def test_laws_of_every_allotment(drawn: list[tuple[ScalingCurve, float | None, bool, float]], devices: int) -> None:
    """Never more than there is, only sizes that exist, the same in any order; idle devices are of no use to anybody."""
    stages = [
        Elastic(f"s{i}", curve, size=min(curve.rates) if runs else 0, left_s=left_s, since_s=since_s)
        for i, (curve, left_s, runs, since_s) in enumerate(drawn)
    ]
    sizes = allot(stages, devices)
    assert sum(sizes.values()) <= devices
    assert all(sizes[one.id] in (0, *one.curve.rates) for one in stages)
    assert sizes == allot(stages[::-1], devices)
    idle = devices - sum(sizes.values())
    for one in stages:
        if not sizes[one.id] and not one.size:
            assert min(step[0] for step in one.curve.steps()) > idle
