"""The queue: the waiting jobs in the order of their priority."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from controlplane.accounts.models import User
from controlplane.jobs import models as rows
from controlplane.queries import job_rows, jobs
from scheduler.core.model.lifecycle import WAITING, State


def in_line(user: User, pool: str = "") -> QuerySet[Any]:
    """The waiting jobs that this user may see, by pool, of higher priority first and then of lower number.

    ``ahead`` counts the pending jobs of the same pool that come before, also those that the user may not see.
    """
    before = Q(priority__gt=OuterRef("priority")) | Q(priority=OuterRef("priority"), number__lt=OuterRef("number"))
    others = rows.Job.objects.filter(before, state=State.PENDING, pool=OuterRef("pool"))
    ahead = others.order_by().values("pool").annotate(count=Count("id")).values("count")
    waiting = job_rows.whole(jobs.visible(user)).filter(state__in=WAITING)
    chosen = waiting.filter(pool__name=pool) if pool else waiting
    return chosen.annotate(ahead=Coalesce(Subquery(ahead), 0)).order_by("pool__name", "-priority", "number")


def by_pool(user: User) -> dict[str, int]:
    """The number of waiting jobs that this user may see, by the name of their pool."""
    waiting = jobs.visible(user).filter(state__in=WAITING).order_by("pool__name")
    return dict(waiting.values_list("pool__name").annotate(Count("id")))
