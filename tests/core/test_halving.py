"""Successive halving: what must hold of a verdict whatever is reported, and the numbers of its rungs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model.halving import Goal, Halving

values = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3).map(float)
rules = st.builds(
    Halving,
    metric=st.just("loss"),
    goal=st.sampled_from(Goal),
    min_steps=st.integers(1, 1_000),
    reduction_factor=st.integers(2, 10),
    rungs=st.integers(1, 10),
)


def rank(rule: Halving, value: float | None) -> float:
    """Smaller is better; what is no number is worst."""
    if value is None:
        return math.inf
    return value if rule.goal is Goal.MINIMIZE else -value


@given(rules, values, st.lists(values, max_size=40))
def test_who_goes_on_is_among_the_best_share_of_those_that_reached_the_rung(
    rule: Halving, value: float | None, earlier: list[float | None]
) -> None:
    verdict = rule.judge(value, earlier)
    better = sum(rank(rule, each) < rank(rule, value) for each in earlier)
    assert verdict.among == len(earlier) + 1
    if verdict.among < rule.reduction_factor:
        assert (verdict.goes_on, verdict.cutoff) == (True, None)
    elif value is None:
        assert not verdict.goes_on
    else:
        assert verdict.goes_on == (better < verdict.among // rule.reduction_factor)
        assert verdict.cutoff is None or verdict.goes_on == (rank(rule, value) <= rank(rule, verdict.cutoff))


@given(rules, values, values, st.lists(values, max_size=40), st.randoms())
def test_a_better_value_fares_no_worse_and_the_order_of_the_others_is_no_matter(
    rule: Halving, one: float | None, other: float | None, earlier: list[float | None], dice: object
) -> None:
    better, worse = sorted((one, other), key=lambda value: rank(rule, value))
    assert rule.judge(better, earlier).goes_on >= rule.judge(worse, earlier).goes_on
    shuffled = list(earlier)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rule.judge(one, shuffled) == rule.judge(one, earlier)


@given(rules, st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_the_best_of_all_is_never_stopped(rule: Halving, told: list[float]) -> None:
    best = min(told, key=lambda value: rank(rule, value))
    for at, value in enumerate(told):
        if value == best:
            assert rule.judge(value, told[:at]).goes_on


@given(rules, st.integers(-10, 2**53))
def test_a_step_reaches_the_rungs_up_to_it(rule: Halving, step: int) -> None:
    steps, rung = rule.steps(), rule.rung_at(step)
    assert len(steps) == rule.rungs
    assert steps == sorted(set(steps))
    assert all(least <= step for least in steps[:rung])
    assert all(least > step for least in steps[rung:])


@pytest.mark.parametrize(
    ("goal", "value", "earlier", "goes_on", "cutoff"),
    [
        (Goal.MINIMIZE, 0.5, [], True, None),
        (Goal.MINIMIZE, 9.0, [0.5], True, None),
        (Goal.MINIMIZE, 0.6, [0.5, 9.0], False, 0.5),
        (Goal.MAXIMIZE, 0.6, [0.5, 9.0], False, 9.0),
        (Goal.MAXIMIZE, 9.0, [0.5, 9.0], True, 9.0),
        (Goal.MINIMIZE, 0.6, [None, None], True, 0.6),
        (Goal.MINIMIZE, None, [None, None], False, None),
    ],
)
def test_the_best_third_goes_on(
    goal: Goal, value: float | None, earlier: list[float | None], goes_on: bool, cutoff: float | None
) -> None:
    verdict = Halving("loss", goal, 10, 3, 2).judge(value, earlier)
    assert (verdict.goes_on, verdict.cutoff) == (goes_on, cutoff)
