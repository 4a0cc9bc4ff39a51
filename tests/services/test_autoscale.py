"""How many replicas a service asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.services.autoscale import STEADY_S, Bounds, Signals, asked, quantile, wanted
from router.protocol import BOUNDS

SOME = Bounds(1, 8, 4.0, first_byte_s=0.5, idle_s=60.0)
loads = st.integers(0, 1_000)


@given(loads, loads, st.integers(0, 8), st.floats(0, 1e6), st.integers(0, 3))
def test_it_stays_between_its_bounds(queued: int, active: int, now: int, quiet: float, low: int) -> None:
    bounds = Bounds(low, 8, 4.0, idle_s=60.0)
    assert low <= asked(now, bounds, Signals(queued, active, (), quiet)) <= 8


@given(loads, loads)
def test_more_load_never_asks_for_fewer(one: int, more: int) -> None:
    small, large = sorted((one, more))
    assert asked(1, SOME, Signals(small)) <= asked(1, SOME, Signals(large))


def test_a_late_first_byte_asks_for_one_more() -> None:
    late = [0] * (len(BOUNDS) + 1)
    late[BOUNDS.index(1.0)] = 20
    assert asked(2, SOME, Signals(0, 4, late)) == 3


def test_only_a_quiet_service_has_none_and_a_request_wakes_it() -> None:
    bounds = Bounds(0, 4, 4.0, idle_s=60.0)
    assert asked(1, bounds, Signals(quiet_s=59.0)) == 1
    assert asked(1, bounds, Signals(quiet_s=60.0)) == 0
    assert asked(0, bounds, Signals(queued=1, quiet_s=1_000.0)) == 1


def test_more_at_once_and_fewer_only_after_a_while() -> None:
    number, wishes = wanted(1, SOME, Signals(active=20), (), 0.0)
    assert number == 5
    number, wishes = wanted(number, SOME, Signals(active=1), wishes, 1.0)
    assert number == 5
    number, wishes = wanted(number, SOME, Signals(active=1), wishes, STEADY_S + 0.5)
    assert number == 1


def test_a_quantile_is_the_bound_of_its_interval() -> None:
    assert quantile([], 0.5) is None
    assert quantile([1, 0, 1], 0.5) == BOUNDS[0]
    assert quantile([1, 0, 1], 0.9) == BOUNDS[2]
