"""How many replicas a service asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.services.autoscale import (
    LATE_S,
    STEADY_S,
    TREND_S,
    Bounds,
    Moment,
    Signals,
    growth,
    quantile,
    wanted,
)
from router.protocol import BOUNDS

SOME = Bounds(1, 8, 4.0, first_byte_s=0.5, idle_s=60.0)
LATE = [0] * (len(BOUNDS) + 1)
LATE[BOUNDS.index(1.0)] = 20
signals = st.builds(
    Signals,
    st.integers(0, 200),
    st.integers(0, 200),
    st.sampled_from([(), LATE]),
    st.floats(0, 1_000),
    st.integers(0, 10**6),
    st.floats(0, 1_000),
)
bounds = st.builds(
    lambda low, more, requests, first_byte_s, tokens: Bounds(low, low + more, requests, first_byte_s, 60.0, tokens),
    st.integers(0, 5),
    st.integers(0, 20),
    st.floats(0.1, 50),
    st.none() | st.just(0.5),
    st.none() | st.floats(1, 10**6),
)


def follow(limits: Bounds, told: list[Signals], now: int = 1, step_s: float = 1.0) -> list[int]:
    """Return the numbers that are wanted from second to second."""
    history: list[Moment] = []
    found = []
    for second, each in enumerate(told):
        now, history = wanted(now, limits, each, history, second * step_s)
        found.append(now)
    return found


@given(bounds, st.lists(signals, min_size=1, max_size=60), st.integers(0, 50))
def test_it_stays_between_its_bounds(limits: Bounds, told: list[Signals], first: int) -> None:
    found = follow(limits, told, first)
    assert all(number <= limits.high for number in found)
    assert all(number >= limits.low for number in found)


@given(bounds, st.lists(signals, min_size=30, max_size=90))
def test_after_a_rise_nothing_falls_for_a_while_but_what_is_quiet(limits: Bounds, told: list[Signals]) -> None:
    numbers = [1, *follow(limits, told, step_s=3.0)]
    rises = [3.0 * at for at in range(1, len(numbers)) if numbers[at] > numbers[at - 1]]
    falls = [3.0 * at for at in range(1, len(numbers)) if 0 < numbers[at] < min(numbers[at - 1], limits.high)]
    assert not [(up, down) for up in rises for down in falls if up < down < up + STEADY_S]
    # In any such while it turns from up to down once at most: what it adds and takes is twice its range at most.
    for start in rises:
        span = [at for at in range(1, len(numbers)) if start < 3.0 * at <= start + STEADY_S]
        changed = sum(abs(numbers[at] - numbers[at - 1]) for at in span if numbers[at] and numbers[at - 1])
        assert changed <= 2 * (limits.high - min(1, limits.low))


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 8))
def test_more_load_never_asks_for_fewer(one: int, more: int, now: int) -> None:
    small, large = sorted((one, more))
    assert wanted(now, SOME, Signals(small), (), 0.0)[0] <= wanted(now, SOME, Signals(large), (), 0.0)[0]


def test_a_late_first_byte_asks_for_one_more_and_waits_for_it_to_help() -> None:
    late = Signals(0, 4, LATE)
    numbers = follow(SOME, [late] * int(2 * LATE_S + 12), 2)
    assert numbers[0] == 3
    assert numbers[int(LATE_S) - 1] == 3
    assert numbers[-1] in (4, 5)


def test_only_a_quiet_service_has_none_and_a_request_wakes_it() -> None:
    limits = Bounds(0, 4, 4.0, idle_s=60.0)
    assert wanted(1, limits, Signals(quiet_s=59.0), (), 0.0)[0] == 1
    assert wanted(1, limits, Signals(quiet_s=60.0), (), 0.0)[0] == 0
    assert wanted(0, limits, Signals(queued=1, quiet_s=1_000.0), (), 0.0)[0] == 1


def test_fewer_only_after_a_calm_of_which_all_is_known() -> None:
    numbers = follow(SOME, [Signals(active=20)] + [Signals(active=1)] * 90)
    assert numbers[0] == 5
    assert numbers[int(STEADY_S) - 1] == 5
    assert numbers[-1] == 1
    # One that has just begun to look knows of no calm.
    assert wanted(5, SOME, Signals(active=1), (), 1_000.0)[0] == 5


def test_a_growing_load_is_met_before_it_is_there() -> None:
    growing = [Signals(active=second // 6, start_s=60.0) for second in range(120)]
    assert follow(SOME, growing)[-1] > follow(SOME, [Signals(active=19, start_s=60.0)] * 120)[-1]
    assert growth([Moment(second, 1, second / 60) for second in range(0, int(TREND_S), 5)], TREND_S) > 0.016


def test_what_waits_counts_at_once_and_tokens_count_where_they_are_a_target() -> None:
    calm = [Moment(float(second), 1, 0.0) for second in range(0, 100, 5)]
    assert wanted(1, SOME, Signals(queued=20), calm, 100.0)[0] == 5
    limits = Bounds(1, 8, 1_000.0, tokens=1_000.0)
    assert wanted(1, limits, Signals(active=1, tokens=3_000), (), 0.0)[0] == 3


def test_a_quantile_is_the_bound_of_its_interval() -> None:
    assert quantile([], 0.5) is None
    assert quantile([1, 0, 1], 0.5) == BOUNDS[0]
    assert quantile([1, 0, 1], 0.9) == BOUNDS[2]
