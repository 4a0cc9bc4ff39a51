"""How fast running stages advance, and when they will have done all steps, as far as what they report tells it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from django.utils import timezone

from controlplane.jobs.models import Curves, Job
from controlplane.jobs.step_marks import rate, telling
from scheduler.core.model.lifecycle import State


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


def _of_attempt(row: Curves, now: float) -> StagePace | None:
    marks = telling(row.marks, now)
    if not marks:
        return None
    (begin, _first), (end, last) = marks[0], marks[-1]
    stage = row.attempt.stage
    told = (stage.progress or {}).get("total")
    total = int(told) if isinstance(told, int | float) and told >= last else None
    rates = [rate(marks), rate(marks[len(marks) // 2 :])]
    ends = sorted(end + (total - last) / speed for speed in rates if total is not None and speed > 0)
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


def _moment(at: float) -> datetime | None:
    """The time, or None if it is too far away for a date."""
    try:
        return datetime.fromtimestamp(at, UTC).replace(microsecond=0)
    except (OverflowError, ValueError, OSError):
        return None
