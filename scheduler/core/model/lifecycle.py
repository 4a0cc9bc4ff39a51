"""The lifecycle table: which state of a stage follows which event. Nothing else decides that.

``next_state(state, event)`` is the only way to a new state; the control plane's single writer and the simulator both
call it. Lost, preempted, timed out and out of memory are causes on an attempt, never states.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from scheduler.core.model.sentences import _


class State(StrEnum):
    """The state of a stage. A job's state derives from its stages by :func:`job_state`."""

    HELD = "HELD"
    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StageEvent(StrEnum):
    """An event that may change the state of a stage."""

    HOLD = "hold"
    RELEASE = "release"
    PLACE = "place"
    START = "start"
    STOP = "stop"
    SUSPEND = "suspend"
    RESUME = "resume"
    COMPLETE = "complete"
    REQUEUE = "requeue"
    FAIL = "fail"
    CANCEL = "cancel"


class Cause(StrEnum):
    """Why an attempt ended other than by exit 0."""

    EXIT_CODE = "EXIT_CODE"
    SIGNAL = "SIGNAL"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    OUT_OF_DISK = "OUT_OF_DISK"
    PREEMPTED = "PREEMPTED"
    RESIZE = "RESIZE"
    MOVE = "MOVE"
    REQUEUED = "REQUEUED"
    CANCELLED = "CANCELLED"
    DEADLINE = "DEADLINE"
    NODE_FAIL = "NODE_FAIL"
    NODE_REBOOT = "NODE_REBOOT"
    DEVICE_ERROR = "DEVICE_ERROR"
    SUPERVISOR_LOST = "SUPERVISOR_LOST"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_UNFIT = "NODE_UNFIT"
    SETUP_FAILED = "SETUP_FAILED"
    HELD_IDLE = "HELD_IDLE"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    CHECKPOINTED = "CHECKPOINTED"
    DEPENDENCY = "DEPENDENCY"
    EARLY_STOPPED = "EARLY_STOPPED"


class NodeState(StrEnum):
    JOINING = "JOINING"
    READY = "READY"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    SUSPECT = "SUSPECT"
    LOST = "LOST"


class Health(StrEnum):
    OK = "OK"
    DEGRADED = "DEGRADED"
    UNHEALTHY = "UNHEALTHY"
    QUARANTINED = "QUARANTINED"
    CORDONED = "CORDONED"
    LOST = "LOST"


S, E = State, StageEvent

WAITING: Final = frozenset({S.HELD, S.PENDING})
ACTIVE: Final = frozenset({S.STARTING, S.RUNNING, S.STOPPING, S.SUSPENDED})
FINAL: Final = frozenset({S.COMPLETED, S.FAILED, S.CANCELLED})
USABLE_HEALTH: Final = frozenset({Health.OK, Health.DEGRADED})

TABLE: Final[dict[tuple[State, StageEvent], State]] = {
    (S.PENDING, E.HOLD): S.HELD,
    (S.HELD, E.RELEASE): S.PENDING,
    (S.PENDING, E.PLACE): S.STARTING,
    (S.STARTING, E.START): S.RUNNING,
    (S.STARTING, E.STOP): S.STOPPING,
    (S.RUNNING, E.STOP): S.STOPPING,
    (S.SUSPENDED, E.STOP): S.STOPPING,
    (S.RUNNING, E.SUSPEND): S.SUSPENDED,
    (S.SUSPENDED, E.RESUME): S.RUNNING,
    # A short stage may end before its start was reported; one told to stop or to pause may have finished just before.
    (S.STARTING, E.COMPLETE): S.COMPLETED,
    (S.RUNNING, E.COMPLETE): S.COMPLETED,
    (S.STOPPING, E.COMPLETE): S.COMPLETED,
    (S.SUSPENDED, E.COMPLETE): S.COMPLETED,
    (S.STARTING, E.REQUEUE): S.PENDING,
    (S.RUNNING, E.REQUEUE): S.PENDING,
    (S.STOPPING, E.REQUEUE): S.PENDING,
    (S.SUSPENDED, E.REQUEUE): S.PENDING,
    (S.PENDING, E.FAIL): S.FAILED,
    (S.STARTING, E.FAIL): S.FAILED,
    (S.RUNNING, E.FAIL): S.FAILED,
    (S.STOPPING, E.FAIL): S.FAILED,
    (S.SUSPENDED, E.FAIL): S.FAILED,
    # An active stage is cancelled through STOPPING: its processes end first.
    (S.HELD, E.CANCEL): S.CANCELLED,
    (S.PENDING, E.CANCEL): S.CANCELLED,
    (S.STOPPING, E.CANCEL): S.CANCELLED,
}


class IllegalTransition(ValueError):
    """Raised when an event cannot happen in a state."""

    def __init__(self, state: State, event: StageEvent) -> None:
        super().__init__(_("the action {event} is not for a stage that is {state}").format(state=state, event=event))
        self.state, self.event = state, event


def next_state(state: State, event: StageEvent) -> State:
    """The state that follows; raises :class:`IllegalTransition` where the table has no row."""
    try:
        return TABLE[State(state), StageEvent(event)]
    except KeyError:
        raise IllegalTransition(State(state), StageEvent(event)) from None


def sources(event: StageEvent) -> frozenset[State]:
    """All states in which ``event`` may happen; the writer's UPDATE names them in its WHERE."""
    return frozenset(state for state, e in TABLE if e == event)


def job_state(stages: list[State]) -> State:
    """The state of a job, from the states of its stages (never empty).

    COMPLETED when all completed; FAILED or CANCELLED as soon as one is and nothing is active any more; SUSPENDED while
    nothing of it runs and something is paused; RUNNING while any is active or has completed; HELD when all that remains
    is held; PENDING until the first starts.
    """
    states = set(stages)
    if states == {S.COMPLETED}:
        return S.COMPLETED
    if states <= FINAL:
        return S.FAILED if S.FAILED in states else S.CANCELLED
    if active := states & ACTIVE:
        if S.SUSPENDED in active and active <= {S.SUSPENDED, S.STOPPING}:
            return S.SUSPENDED
        return S.STOPPING if active == {S.STOPPING} and not states & WAITING else S.RUNNING
    if S.COMPLETED in states:
        return S.HELD if states - FINAL == {S.HELD} else S.RUNNING
    return S.HELD if states - FINAL == {S.HELD} else S.PENDING
