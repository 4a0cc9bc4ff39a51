"""The judgement of gates and trials: nothing passes that was not reported as a finite number within its bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clause_templates import RECORD
from controlplane.services.gate import ENOUGH, FEWEST, Trial, TrialAnswers, finite, judge, judge_trial
from router.protocol import BOUNDS

# Also small ones, which are near each other and equal: a bound is kept to the last digit.
FEW = st.integers(-3, 3).map(float)
NUMBERS = FEW | st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
ANYTHING = st.one_of(
    FEW, st.floats(), st.integers(), st.booleans(), st.text(max_size=5), st.none(), st.integers(min_value=10**400)
)
GATES = st.fixed_dictionaries(
    {
        "metric": st.just("m"),
        "at_most": st.none() | NUMBERS,
        "at_least": st.none() | NUMBERS,
        "goal": st.sampled_from(["minimize", "maximize"]),
        "better_than_serving": st.booleans(),
    }
)


@given(GATES, st.dictionaries(st.sampled_from(["m", "other"]), ANYTHING), st.none() | NUMBERS)
def test_what_passes_was_reported_and_keeps_every_bound(
    gate: dict[str, Any], reported: dict[str, Any], serving: float | None
) -> None:
    verdict = judge(gate, reported, serving)
    assert verdict.code in RECORD
    RECORD[verdict.code].format_map(verdict.params)
    value = reported.get("m")
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and finite(value) is not None
    keeps = is_number and (gate["at_most"] is None or value <= gate["at_most"])  # type: ignore[operator]
    keeps = keeps and (gate["at_least"] is None or value >= gate["at_least"])
    if keeps and gate["better_than_serving"]:
        if serving is None:
            keeps = gate["at_most"] is not None or gate["at_least"] is not None
        else:
            keeps = value < serving if gate["goal"] == "minimize" else value > serving
    assert verdict.passes == bool(keeps)


@given(GATES, NUMBERS, NUMBERS, st.none() | NUMBERS)
def test_a_better_number_never_passes_less(
    gate: dict[str, Any], one: float, other: float, serving: float | None
) -> None:
    gate = {**gate, ("at_least" if gate["goal"] == "minimize" else "at_most"): None}
    worse, better = sorted([one, other], reverse=gate["goal"] == "minimize")
    if judge(gate, {"m": worse}, serving).passes:
        assert judge(gate, {"m": better}, serving).passes


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, 10**400])
def test_what_is_no_finite_number_never_passes(value: Any) -> None:
    gate = {"metric": "m", "at_most": 1e300, "at_least": -1e300, "goal": "", "better_than_serving": False}
    assert not judge(gate, {"m": value}, None).passes
    assert not judge(gate, {}, None).passes


@pytest.mark.parametrize(
    ("bound", "value", "passes"),
    [
        ({"at_most": 20.0}, 20.0, True),
        ({"at_most": 20.0}, 20.000001, False),
        ({"at_least": 20.0}, 20.0, True),
        ({"at_least": 20.0}, 19.999999, False),
        ({"better_than_serving": True, "at_most": 30.0}, 10.0, False),
        ({"better_than_serving": True, "at_most": 30.0}, 9.999999, True),
        ({"better_than_serving": True, "at_least": 1.0, "goal": "maximize"}, 10.0, False),
        ({"better_than_serving": True, "at_least": 1.0, "goal": "maximize"}, 10.000001, True),
    ],
)
def test_a_bound_is_kept_to_the_last_digit_and_as_good_is_not_better(
    bound: dict[str, Any], value: float, passes: bool
) -> None:
    gate = {"metric": "m", "at_most": None, "at_least": None, "goal": "minimize", "better_than_serving": False, **bound}
    assert judge(gate, {"m": value}, 10.0).passes is passes


COUNTS = st.integers(min_value=0, max_value=10_000)


@given(COUNTS, COUNTS, st.floats(min_value=0, max_value=100), st.floats(min_value=0, max_value=1_000))
def test_a_trial_ends_when_it_is_over_or_enough_failed(answers: int, errors: int, most: float, lasted_s: float) -> None:
    errors = min(errors, answers)
    bounds = {"for_s": 600.0, "errors_at_most": most, "first_byte_s": None}
    verdict, why = judge_trial(bounds, TrialAnswers(answers, errors), lasted_s)
    assert RECORD[why.code].format_map(why.params)
    is_bad = answers > 0 and 100 * errors / answers > most
    if is_bad and (answers >= ENOUGH or lasted_s >= 600):
        assert verdict is Trial.FAILED
    elif is_bad and answers >= FEWEST and verdict is Trial.FAILED:
        # One error more does not make it better.
        more = TrialAnswers(answers, min(answers, errors + 1))
        assert judge_trial(bounds, more, lasted_s)[0] is Trial.FAILED
    else:
        assert verdict is (Trial.PASSED if lasted_s >= 600 else Trial.GOES_ON)


@pytest.mark.parametrize(
    ("answers", "errors", "most", "fails"),
    [(4, 4, 10, False), (5, 5, 10, True), (5, 3, 10, False), (6, 5, 10, True), (19, 4, 10, False), (5, 1, 0, True)],
)
def test_a_revision_that_fails_again_and_again_is_not_tried_to_the_end(
    answers: int, errors: int, most: float, fails: bool
) -> None:
    bounds = {"for_s": 600.0, "errors_at_most": most, "first_byte_s": None}
    verdict, _why = judge_trial(bounds, TrialAnswers(answers, errors), 1.0)
    assert verdict is (Trial.FAILED if fails else Trial.GOES_ON)


def test_late_first_bytes_fail_a_trial_once_more_than_one_in_twenty_is_surely_late() -> None:
    bounds = {"for_s": 600.0, "errors_at_most": 0, "first_byte_s": 1.0}
    quick, late = BOUNDS.index(0.5), BOUNDS.index(2.5)
    counts = [0] * (len(BOUNDS) + 1)
    counts[quick], counts[late] = 95, 5
    assert judge_trial(bounds, TrialAnswers(100, 0, counts), 1.0)[0] is Trial.GOES_ON
    counts[late] = 6
    verdict, why = judge_trial(bounds, TrialAnswers(101, 0, counts), 1.0)
    assert (verdict, why.code, why.params["late"]) == (Trial.FAILED, "TrialLate", 6)
