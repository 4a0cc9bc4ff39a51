"""Decides what the end of an attempt means for its stage: requeue, give up, or cancel. A pure table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler.core.model.clauses import Said, clause, say
from scheduler.core.model.lifecycle import Cause, StageEvent


class RetryOutcome(StrEnum):
    REQUEUE = "requeue"
    GIVE_UP = "give_up"
    CANCEL = "cancel"


EVENT: Final = {
    RetryOutcome.REQUEUE: StageEvent.REQUEUE,
    RetryOutcome.GIVE_UP: StageEvent.FAIL,
    RetryOutcome.CANCEL: StageEvent.CANCEL,
}


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """``backoff_s`` is how long a queued stage must wait first; ``said`` is why, for its history. Only where ``counts``
    does the attempt use up one of the retries."""

    outcome: RetryOutcome
    backoff_s: float = 0.0
    said: Said = ()
    counts: bool = True

    @property
    def why(self) -> str:
        """A sentence for the history of the stage."""
        return say(self.said)

    @property
    def event(self) -> StageEvent:
        """The event of the lifecycle table that follows."""
        return EVENT[self.outcome]


# The stage did nothing wrong: it always goes back, and it costs none of its retries.
NO_FAULT: Final = frozenset(
    {Cause.PREEMPTED, Cause.MOVE, Cause.RESIZE, Cause.REQUEUED, Cause.CHECKPOINTED, Cause.NODE_UNFIT}
)
# Stopped to continue later or elsewhere: its state is worth saving first.
GOES_ON: Final = NO_FAULT - {Cause.CHECKPOINTED, Cause.NODE_UNFIT}
NODE_LOST: Final = frozenset({Cause.NODE_FAIL, Cause.LEASE_EXPIRED})
# No second attempt could end otherwise.
HOPELESS: Final = frozenset({Cause.DEADLINE, Cause.DEPENDENCY, Cause.HELD_IDLE})
RETRYABLE: Final = frozenset(Cause) - NO_FAULT - HOPELESS - {Cause.CANCELLED, Cause.EARLY_STOPPED}
# Retried only if the job file names it: it would most often end in the same way.
NAMED_ONLY: Final = frozenset({Cause.TIMEOUT, Cause.SETUP_FAILED})
ON_NODE_LOST: Final = ("wait", "requeue", "requeue_fast")


def decide(
    cause: Cause | str,
    attempts: int,
    max_attempts: int,
    retry_on: Collection[str] = (),
    *,
    preemptions: int = 0,
    on_node_lost: str = "wait",
    backoff_s: float = 10.0,
    backoff_limit_s: float = 600.0,
) -> RetryVerdict:
    """What follows the end of attempt number ``attempts`` (from 1) of at most ``max_attempts``.

    ``retry_on`` holds causes in lower case (``node_fail``, ``exit_code``). ``on_node_lost`` *requeue* and
    *requeue_fast* answer a lost node without any retry left or named. The backoff doubles with each failed attempt up
    to ``backoff_limit_s``; a preempted stage waits longer each time it was preempted, up to five minutes, so that it is
    not thrown out again at once. Raises ``ValueError`` for a cause that does not exist.
    """
    try:
        cause = Cause(str(cause).upper())
    except ValueError:
        known = ", ".join(sorted(Cause))
        raise ValueError(f"{cause!r} is not a cause; it must be one of {known}") from None
    if cause is Cause.CANCELLED:
        return RetryVerdict(RetryOutcome.CANCEL, said=(clause("Cancelled"),), counts=False)
    if cause is Cause.EARLY_STOPPED:
        return RetryVerdict(RetryOutcome.CANCEL, said=(clause("StoppedEarly"),), counts=False)
    if cause in NO_FAULT:
        wait_s = min(300.0, 5.0 * 2 ** max(0, preemptions - 1)) if cause is Cause.PREEMPTED and preemptions else 0.0
        return RetryVerdict(RetryOutcome.REQUEUE, wait_s, (clause("QueuedAgain", cause=str(cause)),), counts=False)
    if cause in HOPELESS:
        return RetryVerdict(RetryOutcome.GIVE_UP, said=(clause("Hopeless", cause=str(cause)),))
    if cause in NODE_LOST and on_node_lost in ("requeue", "requeue_fast"):
        return RetryVerdict(RetryOutcome.REQUEUE, 0.0, (clause("QueuedAsNodeLost", cause=str(cause)),), counts=False)
    if str(cause).lower() not in {word.lower() for word in retry_on}:
        return RetryVerdict(RetryOutcome.GIVE_UP, said=(clause("NotRetried", cause=str(cause)),))
    if attempts >= max_attempts:
        last = clause("LastAttempt", cause=str(cause), attempt=attempts, of=max_attempts)
        return RetryVerdict(RetryOutcome.GIVE_UP, said=(last,))
    wait_s = min(backoff_limit_s, backoff_s * 2 ** max(0, attempts - 1))
    following = clause("NextAttempt", cause=str(cause), attempt=attempts + 1, of=max_attempts)
    return RetryVerdict(RetryOutcome.REQUEUE, wait_s, (following,))
