"""How fast running stages advance, and when they will have done all steps, as far as what they report tells it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from django.utils import timezone

from controlplane.jobs.models import Curves, Job
from scheduler.core.model.lifecycle import State

# Fewer reports, or reports over less time than this, tell no speed.
LEAST_MARKS: Final = 3
LEAST_S: Final = 30.0
# A stage that has reported no step for so long, or so many times as long as usual, has no speed now.
SILENT_S: Final = 120.0
SILENT_TIMES: Final = 5

Mark = tuple[float, float]


class StagePace(msgspec.Struct, frozen=True):
    """The speed of a running stage: ``steps_per_s`` over the last ``over_s`` seconds up to ``at``.

    ``low_at`` and ``high_at`` are when it will have done all ``total`` steps, by the speed of that time and by that of
    its second half, the earlier first; null where it does not report how many there are.
    """

    stage: str
    attempt: int
    step: int
    total: int | None
    steps_per_s: float
    over_s: float
    at: datetime
    low_at: datetime | None
    high_at: datetime | None


class StagePaceList(msgspec.Struct, frozen=True):
    """The stages that run and report their steps often enough to have a speed."""

    results: list[StagePace]


def of_job(job: Job) -> StagePaceList:
    """The speed of each running stage of this job that has one."""
    rows = Curves.objects.filter(
        attempt__stage__job=job, attempt__stage__state=State.RUNNING, attempt__ended_at=None
    ).select_related("attempt__stage")
    now = timezone.now().timestamp()
    found = [_of_attempt(row, now) for row in rows.order_by("attempt__stage__index")]
    return StagePaceList([pace for pace in found if pace is not None])


def seconds_per_step(marks: Sequence[Sequence[float]], now: float) -> float | None:
    """How long a step takes by the marks of an attempt, up to ``now``; None where they tell no speed."""
    telling = _telling(marks, now)
    return 1 / _rate(telling) if telling else None


def _of_attempt(row: Curves, now: float) -> StagePace | None:
    marks = _telling(row.marks, now)
    if not marks:
        return None
    (begin, _first), (end, last) = marks[0], marks[-1]
    stage = row.attempt.stage
    told = (stage.progress or {}).get("total")
    total = int(told) if isinstance(told, int | float) and told >= last else None
    rates = [_rate(marks), _rate(marks[len(marks) // 2 :])]
    ends = sorted(end + (total - last) / rate for rate in rates if total is not None and rate > 0)
    return StagePace(
        stage=stage.name,
        attempt=row.attempt.number,
        step=int(last),
        total=total,
        steps_per_s=rates[0],
        over_s=round(end - begin, 3),
        at=datetime.fromtimestamp(end, UTC),
        low_at=_moment(ends[0]) if ends else None,
        high_at=_moment(ends[-1]) if ends else None,
    )


def _telling(raw: Sequence[Sequence[float]], now: float) -> Sequence[Mark]:
    """The marks that tell a speed: enough of them, over enough time, and the last not long ago; none otherwise."""
    marks = _onward([(float(at), float(step)) for at, step in raw])
    if len(marks) < LEAST_MARKS:
        return []
    (begin, first), (end, last) = marks[0], marks[-1]
    usual_s = (end - begin) / (len(marks) - 1)
    is_telling = end - begin >= LEAST_S and last > first and now - end <= max(SILENT_S, SILENT_TIMES * usual_s)
    return marks if is_telling else []


def _onward(marks: Sequence[Mark]) -> Sequence[Mark]:
    """The marks since the steps last went back, as they do where a stage begins another round."""
    back = [i for i in range(1, len(marks)) if marks[i][1] < marks[i - 1][1]]
    return marks[back[-1] :] if back else marks


def _rate(marks: Sequence[Mark]) -> float:
    (begin, first), (end, last) = marks[0], marks[-1]
    return (last - first) / (end - begin) if end > begin else 0.0


def _moment(at: float) -> datetime | None:
    """The time, or None if it is too far away for a date."""
    try:
        return datetime.fromtimestamp(at, UTC).replace(microsecond=0)
    except (OverflowError, ValueError, OSError):
        return None
