"""How often a stage should save: Young's interval, with rates that are sane before and after much was seen."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.predict.saving import (
    DEVICE_PRIOR_S,
    HOUR_S,
    LEAST_S,
    MOST_S,
    NODE_PRIOR_S,
    NONE_SEEN,
    SAVE_S,
    Interruptions,
    between_s,
    every_s,
)

COSTS = st.floats(0.0, 1e7)
TIMES = st.floats(1e-3, 1e12)
COUNTS = st.integers(0, 10_000)
SPANS = st.floats(0.0, 1e12)
SEEN = st.builds(Interruptions, COUNTS, SPANS, COUNTS, SPANS, COUNTS, SPANS)
SIZES = st.integers(0, 100_000)


@given(COSTS, COSTS, TIMES, TIMES)
def test_the_interval_grows_with_cost_and_with_the_time_between_interruptions_within_its_bounds(
    one: float, other: float, rare: float, often: float
) -> None:
    cheap, dear = sorted((one, other))
    often, rare = sorted((often, rare))
    assert LEAST_S <= every_s(cheap, often) <= every_s(dear, often) <= every_s(dear, rare) <= MOST_S


@given(st.floats(1.0, 100.0), st.floats(1e4, 1e6))
def test_within_the_bounds_no_other_interval_loses_less_to_first_order(save_s: float, mean_s: float) -> None:
    best = every_s(save_s, mean_s)
    if not LEAST_S < best < MOST_S:
        return

    def lost(interval_s: float) -> float:
        """The share of the time that goes into saves, and into work that is done twice."""
        return save_s / interval_s + interval_s / (2 * mean_s)

    assert lost(best) <= min(lost(best * 0.9), lost(best * 1.1))


@given(SEEN, SIZES, SIZES, COUNTS)
def test_more_faults_and_more_that_can_fail_interrupt_more_often(
    seen: Interruptions, nodes: int, devices: int, more: int
) -> None:
    now = between_s(seen, nodes, devices)
    assert now > 0
    assert between_s(seen, nodes + more, devices) <= now
    assert between_s(seen, nodes, devices + more) <= now
    assert between_s(replace(seen, node_faults=seen.node_faults + more), nodes, devices) <= now
    assert between_s(replace(seen, device_faults=seen.device_faults + more), nodes, devices) <= now
    assert between_s(replace(seen, stops=seen.stops + more), nodes, devices) <= now


@given(SEEN, SIZES, SIZES, SPANS)
def test_time_without_a_fault_is_worth_something(seen: Interruptions, nodes: int, devices: int, more_s: float) -> None:
    calm = replace(
        seen, node_s=seen.node_s + more_s, device_s=seen.device_s + more_s, attempt_s=seen.attempt_s + more_s
    )
    assert between_s(calm, nodes, devices) >= between_s(seen, nodes, devices)


def test_a_young_pool_has_sane_values() -> None:
    one_node = every_s(SAVE_S, between_s(NONE_SEEN, 1, 8))
    assert HOUR_S < one_node < MOST_S
    thousand = between_s(NONE_SEEN, 1_000, 8_000)
    assert thousand == pytest.approx(1 / (1_000 / NODE_PRIOR_S + 8_000 / DEVICE_PRIOR_S), rel=0.02)
    assert every_s(SAVE_S, thousand) == pytest.approx(sqrt(2 * SAVE_S * thousand))
    assert every_s(SAVE_S, thousand) < 1_200


def test_much_that_was_seen_outweighs_what_was_assumed() -> None:
    much = Interruptions(node_faults=500, node_s=500 * 100 * HOUR_S, attempt_s=1e12, device_s=1e13)
    assert between_s(much, 1, 0) == pytest.approx(100 * HOUR_S, rel=0.25)
