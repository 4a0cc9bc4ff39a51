"""What is thought of a family of which little has finished."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.predict.evidence import closest
from scheduler.predict.outlook import outlook

LIMIT_S = 36_000.0
NOTHING = np.zeros(0)


def likely_s(done: list[float], spent: list[float], beyond_s: float = 0.0) -> float:
    return closest(*outlook(np.sort(np.array(done)), np.sort(np.array(spent)), LIMIT_S, beyond_s))


def test_probabilities_sum_to_one_and_nothing_exceeds_the_limit() -> None:
    values, weights = outlook(np.array([50.0, 60.0]), np.array([10.0, 900.0]), LIMIT_S, 60.0)
    assert weights.sum() == pytest.approx(1.0)
    assert weights.min() > 0
    assert values.min() >= 60
    assert values.max() <= LIMIT_S


def test_a_few_that_finished_tell_the_scale() -> None:
    assert 250 < likely_s([300.0, 330.0, 280.0, 310.0], []) < 400
    assert 2_500 < likely_s([3_000.0, 3_300.0, 2_800.0, 3_100.0], []) < 4_000


def test_who_runs_for_long_without_an_end_makes_long_times_likely() -> None:
    """The same two that finished soon, with none, ten and a hundred others that run for an hour already."""
    soon = [60.0, 90.0]
    found = [likely_s(soon, [3_600.0] * count) for count in (0, 10, 100)]
    assert found[0] < 200
    assert 3_600 < found[1] <= found[2]


def test_what_lies_beyond_is_longer_than_what_it_lies_beyond() -> None:
    assert likely_s([60.0, 90.0], [100.0] * 5, beyond_s=90.0) > 90


def test_many_that_run_cost_no_more_than_a_few() -> None:
    """They are looked at in groups, which changes little."""
    spent = np.sort(np.random.default_rng(3).exponential(500.0, 4_000))
    all_values, all_weights = outlook(np.array([100.0]), spent, LIMIT_S, 100.0)
    few_values, few_weights = outlook(np.array([100.0]), spent[::100], LIMIT_S, 100.0)
    assert len(all_values) <= 600
    assert closest(all_values, all_weights) >= closest(few_values, few_weights)
