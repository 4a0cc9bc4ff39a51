"""The queue: the waiting jobs in the order of their priority."""

from __future__ import annotations

from typing import Any

import msgspec
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from controlplane.accounts.models import User
from controlplane.jobs import models as rows
from controlplane.queries import job_rows, jobs
from scheduler.core.model.lifecycle import WAITING, State


class QueuedJob(msgspec.Struct, frozen=True):
    """A waiting job. ``place`` counts the pending jobs of its pool with a higher priority, or the same and an earlier
    submission; it is null while the job is on hold. The pool's profile may start others first."""

    place: int | None
    job: job_rows.Job


class QueueSlice(msgspec.Struct, frozen=True):
    """A part of the queue, by pool and place. ``total`` is the number of waiting jobs that you may see."""

    results: list[QueuedJob]
    total: int


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


def read(user: User, pool: str, first: int, most: int) -> QueueSlice:
    """The waiting jobs after the first ``first`` ones, at most ``most``."""
    counts = by_pool(user)
    chosen = list(in_line(user, pool)[first : first + most])
    found = [
        QueuedJob(row.ahead + 1 if row.state == State.PENDING else None, job)
        for row, job in zip(chosen, job_rows.shown(chosen), strict=True)
    ]
    return QueueSlice(found, counts.get(pool, 0) if pool else sum(counts.values()))
