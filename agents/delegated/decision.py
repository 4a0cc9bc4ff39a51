"""Decides what is done about one delegated part, as a pure function of what the folder and the engine say of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from agents.delegated import ForeignJob, ForeignState

# How long an engine must have answered without knowing a job before it is submitted again, or given up as lost.
AGAIN_S: Final = 5.0
LOST_S: Final = 120.0
# A job that was asked to stop has this long after its grace, for a supervisor that does not answer any more.
KILL_AFTER_S: Final = 15.0


class Do(Enum):
    """What is done next. ``NEVER`` ends a part whose command never began; ``LOST`` one that the engine has forgotten;
    ``ENDED`` takes the engine's word for the end; ``FENCE`` ends jobs of older epochs first."""

    WAIT = "wait"
    FENCE = "fence"
    SUBMIT = "submit"
    ASK = "ask"
    KILL = "kill"
    NEVER = "never"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PartState:
    """``was_tried``: a submission may have reached the engine. ``has_begun``: its command may have. ``stop_s`` is since
    when it is to end. ``absent_s`` is how long the engine has answered without knowing the job, None while that is
    unknown; ``ended_s`` is since when the engine tells of its end. ``has_older``: a job of an older epoch is there.
    ``is_excused``: an end before the command began is the engine's fault, and was not too often.
    """

    job: ForeignJob | None = None
    was_tried: bool = False
    has_begun: bool = False
    has_older: bool = False
    is_excused: bool = False
    is_asked: bool = False
    stop_s: float | None = None
    grace_s: float = 0.0
    absent_s: float | None = None
    ended_s: float | None = None


def decide(state: PartState, settle_s: float = 0.0) -> Do:
    """Return what is to be done. Without an answer of the engine about a job that it may have, nothing is."""
    if state.job is None:
        return _without_job(state)
    if state.job.state is ForeignState.ENDED:
        if state.ended_s is None or state.ended_s < settle_s:
            return Do.WAIT
        if state.is_excused and not state.has_begun and state.stop_s is None:
            return Do.FENCE if state.has_older else Do.SUBMIT
        return Do.ENDED
    if state.stop_s is None:
        return Do.WAIT
    if not state.has_begun and state.job.state is ForeignState.QUEUED:
        return Do.NEVER
    if state.stop_s >= state.grace_s + KILL_AFTER_S:
        return Do.KILL
    return Do.WAIT if state.is_asked else Do.ASK


def _without_job(state: PartState) -> Do:
    if not state.was_tried:
        if state.stop_s is not None:
            return Do.NEVER
        return Do.FENCE if state.has_older else Do.SUBMIT
    if state.absent_s is None:
        return Do.WAIT
    if state.has_begun:
        return Do.LOST if state.absent_s >= LOST_S else Do.WAIT
    if state.absent_s < AGAIN_S:
        return Do.WAIT
    if state.stop_s is not None:
        return Do.NEVER
    return Do.FENCE if state.has_older else Do.SUBMIT
