"""What a change of the queue does to the jobs of others, as far as the reader may see them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs.models import Job, Stage
from controlplane.whatif import reorder
from controlplane.whatif.questions import NotAnswered

MOST_SHOWN = 50


class MovedJob(msgspec.Struct, frozen=True):
    """A waiting stage whose expected start moves: by ``later_s`` seconds (negative: earlier), null where one of the two
    is not foreseen. ``is_chosen`` tells that its job is one of those that change."""

    number: int
    name: str
    stage: str
    project: str
    was_at: datetime | None
    then_at: datetime | None
    later_s: float | None
    is_chosen: bool


class QueueEffect(msgspec.Struct, frozen=True):
    """What changes for the queue, by planning it with and without the change at ``at``.

    ``back`` and ``forward`` count other jobs whose start moves later or earlier, ``hidden`` those of them that you may
    not see; ``moves`` are the furthest. ``stops`` counts the running stages that would be stopped to make room, of the
    jobs ``stopped`` as far as you may see them. ``fault`` says why it could not be tried; the action can be
    done all the same.
    """

    at: datetime | None
    back: int
    forward: int
    hidden: int
    moves: list[MovedJob]
    stops: int = 0
    stopped: list[int] = []
    fault: str = ""


def effect(user: User, jobs: Sequence[Job], action: str, priority: int | None) -> QueueEffect:
    """Try the action on these jobs, which the caller has checked that the user may change."""
    chosen = {str(job.id) for job in jobs}
    try:
        found = reorder.tried(sorted(chosen), action, priority, user)
    except NotAnswered as refused:
        return QueueEffect(None, 0, 0, 0, [], fault=str(refused))
    at = datetime.fromtimestamp(found.at, UTC)
    if found.too_large:
        return QueueEffect(at, 0, 0, 0, [], fault=_("too many stages wait to try it"))
    stages = Stage.objects.filter(id__in=[move.stage for move in found.moves]).select_related("job__project")
    stages = stages.filter(permissions.visible_jobs(user, "job__"))
    known = {str(stage.id): stage for stage in stages}
    stopped = Job.objects.filter(permissions.visible_jobs(user), stages__id__in=found.stops).distinct()
    others = {move.job: move for move in reversed(found.moves) if move.job not in chosen}
    back = sum(_is_later(move) for move in others.values())
    seen = {str(stage.job_id) for stage in known.values()}
    return QueueEffect(
        at=at,
        back=back,
        forward=len(others) - back,
        hidden=len(others.keys() - seen),
        moves=[_moved(move, known[move.stage], chosen) for move in found.moves if move.stage in known][:MOST_SHOWN],
        stops=len(found.stops),
        stopped=sorted(stopped.values_list("number", flat=True))[:MOST_SHOWN],
    )


def _is_later(move: reorder.MovedStart) -> bool:
    if move.then_at is None or move.was_at is None:
        return move.then_at is None
    return move.then_at > move.was_at


def _moved(move: reorder.MovedStart, stage: Stage, chosen: set[str]) -> MovedJob:
    was, then = (None if at is None else datetime.fromtimestamp(round(at), UTC) for at in (move.was_at, move.then_at))
    return MovedJob(
        number=stage.job.number,
        name=stage.job.name,
        stage=stage.name,
        project=stage.job.project.name,
        was_at=was,
        then_at=then,
        later_s=(then - was).total_seconds() if was and then else None,
        is_chosen=move.job in chosen,
    )
