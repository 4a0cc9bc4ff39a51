"""Limits of users, and how much of each is in use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from django.db.models import Count, Q, QuerySet, Sum

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.jobs.models import Claim, Stage
from controlplane.pools import models as rows
from scheduler.core.model.lifecycle import ACTIVE, WAITING


class Limit(msgspec.Struct, frozen=True):
    """How many stages and devices (other than CPUs) one user may have at once; null is unlimited.

    It counts in a pool and a project, or in all of them if these are null. Without a ``user`` it limits every user,
    each for themselves; one of a user takes its place for them. The last three numbers are the use of ``whose``: its
    user, or you.
    """

    number: int
    user: str | None
    project: str | None
    pool: str | None
    running: int | None
    waiting: int | None
    devices: float | None
    whose: str
    running_now: int
    waiting_now: int
    devices_now: float


def visible(user: User) -> QuerySet[rows.Limit]:
    """The limits that this user may see: their own, and those of every user; all with the permission."""
    found = rows.Limit.objects.select_related("user", "project", "pool")
    if permissions.may(user, Permit.SEE_LIMITS):
        return found
    projects = permissions.visible_projects(user)
    return found.filter(Q(user=None) | Q(user=user), Q(project=None) | Q(project__in=projects))


def shown(limits: Iterable[rows.Limit], user: User) -> list[Limit]:
    """These limits, and how much of each is in use."""
    limits = list(limits)
    whose = {limit.user_id or user.pk for limit in limits}
    stages = Stage.objects.filter(job__user__in=whose, state__in=ACTIVE | WAITING).order_by()
    counts = list(stages.values_list("job__user", "job__project", "job__pool", "state").annotate(count=Count("pk")))
    job = "part__attempt__stage__job"
    claims = Claim.objects.filter(closed_at=None, **{f"{job}__user__in": whose}).exclude(device__kind="cpu").order_by()
    held = list(claims.values_list(f"{job}__user", f"{job}__project", f"{job}__pool").annotate(sum=Sum("milli")))

    def covers(limit: rows.Limit, owner: int, project: Any, pool: Any) -> bool:
        return (
            owner == (limit.user_id or user.pk)
            and limit.project_id in (None, project)
            and limit.pool_id in (None, pool)
        )

    return [
        Limit(
            number=limit.pk,
            user=limit.user.get_username() if limit.user else None,
            project=limit.project.name if limit.project else None,
            pool=limit.pool.name if limit.pool else None,
            running=limit.running,
            waiting=limit.waiting,
            devices=limit.devices,
            whose=(limit.user or user).get_username(),
            running_now=sum(n for *of, state, n in counts if state in ACTIVE and covers(limit, *of)),
            waiting_now=sum(n for *of, state, n in counts if state in WAITING and covers(limit, *of)),
            devices_now=sum(milli for *of, milli in held if covers(limit, *of)) / 1000,
        )
        for limit in limits
    ]
