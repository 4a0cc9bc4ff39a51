"""The limit on how many stages of one user may wait: it refuses submissions beyond it, and moves to where it counts."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Count
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.jobs.models import Job, Stage
from controlplane.jobs.section import FieldError
from controlplane.jobs.spec import InvalidSpec, Resolved
from controlplane.pools import limits
from controlplane.pools.models import Limit
from scheduler.core.model.lifecycle import WAITING


def of(user: User) -> list[Limit]:
    """Return the limits of this user on stages that wait."""
    return [one for one in limits.of(user) if one.waiting is not None]


def check(found: Sequence[Limit], user: User, resolved: Sequence[Resolved]) -> None:
    """Raise InvalidSpec if these jobs would be more than the limits ``found`` allow. What the user submits at the same
    time must be kept out meanwhile."""
    asked = [(one.pool.pk, one.project.pk, len(one.stages) * (len(one.array) if one.array else 1)) for one in resolved]
    _judge(found, user, asked, "")


def check_move(found: Sequence[Limit], job: Job, waits: int, resolved: Resolved, pointer: str) -> None:
    """Raise InvalidSpec if this job, with so many stages that wait, would be more than the limits ``found`` of its
    owner allow where it is moved. Limits that count it already see no more of it. The owner's submissions must be kept
    out meanwhile."""
    newly = [one for one in found if not _counts(one, job.pool_id, job.project_id)]
    _judge(newly, job.user, [(resolved.pool.pk, resolved.project.pk, waits)], pointer)


def _counts(limit: Limit, pool: object, project: object) -> bool:
    return limit.pool_id in (None, pool) and limit.project_id in (None, project)


def _judge(found: Sequence[Limit], user: User, asked: Sequence[tuple[object, object, int]], pointer: str) -> None:
    if not found:
        return
    rows = Stage.objects.filter(job__user=user, state__in=WAITING).order_by()
    waiting = rows.values_list("job__pool", "job__project").annotate(count=Count("pk"))

    def counted(limit: Limit, many: Sequence[tuple[object, object, int]]) -> int:
        return sum(count for pool, project, count in many if _counts(limit, pool, project))

    said = _("limit {number} allows you {limit} waiting stages: {waiting} wait, and {asked} more are submitted")
    faults = [
        FieldError(pointer, said.format(number=one.pk, limit=one.waiting, waiting=now, asked=more), "too_many_waiting")
        for one in found
        if (more := counted(one, asked)) and (now := counted(one, list(waiting))) + more > (one.waiting or 0)
    ]
    if faults:
        raise InvalidSpec(faults)
