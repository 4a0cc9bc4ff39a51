"""What follows the end of an attempt, cause by cause."""

from __future__ import annotations

import pytest

from scheduler.core.model.lifecycle import Cause, StageEvent
from scheduler.core.model.retry import NO_FAULT, RETRYABLE, RetryOutcome, decide


@pytest.mark.parametrize("cause", sorted(NO_FAULT))
def test_no_fault_of_its_own_always_goes_back_and_costs_nothing(cause: Cause) -> None:
    verdict = decide(cause, attempts=9, max_attempts=1)
    assert verdict.outcome is RetryOutcome.REQUEUE
    assert not verdict.counts


@pytest.mark.parametrize("cause", sorted(RETRYABLE))
def test_faults_go_back_only_if_named_and_attempts_are_left(cause: Cause) -> None:
    word = cause.value.lower()
    assert decide(cause, 1, 3, [word]).outcome is RetryOutcome.REQUEUE
    assert decide(cause, 3, 3, [word]).outcome is RetryOutcome.GIVE_UP
    assert decide(cause, 1, 3, []).outcome is RetryOutcome.GIVE_UP


def test_a_cancelled_stage_is_cancelled() -> None:
    assert decide(Cause.CANCELLED, 1, 9, ["cancelled"]).event is StageEvent.CANCEL


@pytest.mark.parametrize("cause", [Cause.DEADLINE, Cause.DEPENDENCY])
def test_the_hopeless_is_given_up(cause: Cause) -> None:
    assert decide(cause, 1, 9, [cause.value.lower()]).event is StageEvent.FAIL


@pytest.mark.parametrize("cause", [Cause.NODE_FAIL, Cause.LEASE_EXPIRED])
def test_a_lost_node_is_answered_by_on_node_lost(cause: Cause) -> None:
    assert decide(cause, 1, 1, on_node_lost="requeue").outcome is RetryOutcome.REQUEUE
    assert decide(cause, 1, 1, on_node_lost="wait").outcome is RetryOutcome.GIVE_UP


def test_the_backoff_doubles_up_to_its_limit() -> None:
    waits = [decide(Cause.SIGNAL, n, 20, ["signal"], backoff_s=10, backoff_limit_s=60).backoff_s for n in range(1, 6)]
    assert waits == [10, 20, 40, 60, 60]


def test_an_unknown_cause_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="NODE_FAIL"):
        decide("bad luck", 1, 1)
