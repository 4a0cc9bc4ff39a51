"""The limit on how many stages of one user may wait, which refuses submissions beyond it."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Count
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.jobs.models import Stage
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
    if not found:
        return
    rows = Stage.objects.filter(job__user=user, state__in=WAITING).order_by()
    waiting = rows.values_list("job__pool", "job__project").annotate(count=Count("pk"))
    asked = [(one.pool.pk, one.project.pk, len(one.stages) * (len(one.array) if one.array else 1)) for one in resolved]

    def counted(limit: Limit, many: Sequence[tuple[object, object, int]]) -> int:
        return sum(
            count
            for pool, project, count in many
            if limit.pool_id in (None, pool) and limit.project_id in (None, project)
        )

    said = _("limit {number} allows you {limit} waiting stages: {waiting} wait, and {asked} more are submitted")
    faults = [
        FieldError("", said.format(number=one.pk, limit=one.waiting, waiting=now, asked=more), "too_many_waiting")
        for one in found
        if (more := counted(one, asked)) and (now := counted(one, list(waiting))) + more > (one.waiting or 0)
    ]
    if faults:
        raise InvalidSpec(faults)
