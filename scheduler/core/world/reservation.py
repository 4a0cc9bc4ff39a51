"""What a stage may get and what it got: an option, an entry of the timetable, and the outcome of a cycle."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.core.model.types import Expected, Grant, Placement, Promise, Reason, Running, Stage
from scheduler.core.world.request_class import FeasibleSet, RequestClass


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a stage: when it could start, when it would end, and where.

    ``among`` is on how many nodes it fitted when it was chosen, ``score`` the score of its best place.
    """

    feasible: FeasibleSet
    start_at: float
    end_at: float
    placement: Placement
    among: int = 0
    score: float = 0.0

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(one for rank in self.placement.grants for one in rank)


@dataclass(frozen=True, slots=True)
class TimetableEntry:
    """An entry of the timetable: what was promised to a stage, and where it is placed."""

    stage: Stage
    promise: Promise
    option: Option


@dataclass(slots=True)
class WaitOutcome:
    """What a cycle decided for a waiting stage: why it waits, and its reservation."""

    stage: Stage
    reasons: list[Reason] = field(default_factory=list)
    request: RequestClass | None = None
    expected: Expected | None = None
    kept: bool = False
    ahead: int = 0
    busy: int = 0
    searched: bool = False
    refused: bool = False


def grants_of(stage: Running) -> tuple[Grant, ...]:
    """Return what a running stage holds, over all ranks."""
    ranks = stage.placement.grants
    return ranks[0] if len(ranks) == 1 else tuple(one for rank in ranks for one in rank)
