"""Maintenance windows: when a node or a pool is out of service, and which stages that affects."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta

import django_filters
import msgspec
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet.models import MaintenanceWindow as Row
from controlplane.jobs.models import Job, Part
from controlplane.queries.calendar_entry import EntryFields, EntryFilter, fields_of


class MaintenanceWindow(EntryFields, frozen=True):
    """A span in which a node, or all nodes of a pool, are out of service: nothing starts there that would run into it.

    With ``cron`` it recurs between ``starts_at`` and ``ends_at``: one begins at each time of that line in
    ``time_zone``, and lasts ``lasts_s``. ``next_starts_at`` and ``next_ends_at`` are of the time that is now or next.
    """

    id: int
    node: str | None
    pool: str | None


class WindowFilter(EntryFilter):
    """Filters of windows; without ``all`` only those that have not ended."""

    node = django_filters.CharFilter(method="of_node", help_text="Name of a node: windows of it and of its pools.")
    pool = django_filters.CharFilter("pool__name", help_text="Name of a pool.")

    def of_node(self, rows: QuerySet[Row], name: str, value: str) -> QuerySet[Row]:
        return rows.filter(Q(node__name=value) | Q(pool__nodes__name=value))


class Affected(msgspec.Struct, frozen=True):
    """A stage that runs on a node of the window and may run into it; ``ends_by`` is when its time limit ends it."""

    job: int
    stage: str
    user: str
    node: str
    ends_by: datetime | None


class MaintenanceWindowDetail(msgspec.Struct, frozen=True):
    """A window and the stages that it affects; ``hidden`` counts stages of jobs that you may not see. ``window`` has
    the id 0 in a dry run."""

    window: MaintenanceWindow
    affects: list[Affected]
    hidden: int


def windows() -> QuerySet[Row]:
    """All windows with the names of their nodes and pools."""
    return Row.objects.select_related("node", "pool")


def shown(rows: Iterable[Row], user: User | None = None) -> list[MaintenanceWindow]:
    """These windows; everybody sees them."""
    return [_shown(row) for row in rows]


def _shown(row: Row) -> MaintenanceWindow:
    return MaintenanceWindow(
        **fields_of(row, timezone.now()),
        id=row.pk,
        node=row.node.name if row.node else None,
        pool=row.pool.name if row.pool else None,
    )


def detail(row: Row, user: User) -> MaintenanceWindowDetail:
    """This window and the stages that it affects, as far as this user may see them."""
    window = _shown(row)
    where = Q(node=row.node) if row.node else Q(node__pools=row.pool)
    return MaintenanceWindowDetail(window, *affected(where, window.next_starts_at, user))


def affected(where: Q, starts_at: datetime, user: User, reservation: str = "") -> tuple[list[Affected], int]:
    """The stages that run where the condition on parts holds, may run on after this time, and do not belong to the
    reservation: those that this user may see, and how many there are besides."""
    found = [one for one in _running(where, reservation) if one[1].ends_by is None or one[1].ends_by > starts_at]
    numbers = {job for job, _one in found}
    visible = set(Job.objects.filter(permissions.visible_jobs(user), pk__in=numbers).values_list("pk", flat=True))
    return [one for job, one in found if job in visible], sum(job not in visible for job, _one in found)


def _running(where: Q, reservation: str) -> Iterable[tuple[uuid.UUID, Affected]]:
    """The running stages there, with the ids of their jobs."""
    parts = Part.objects.filter(where, ended_at=None, attempt__ended_at=None)
    chosen = parts.select_related("attempt__stage__job__user", "node")
    for part in chosen.order_by("attempt__stage__job__number", "attempt__stage__index", "rank"):
        attempt, stage = part.attempt, part.attempt.stage
        if reservation and stage.request.get("reservation") == reservation:
            continue
        limit_s = stage.request["time_limit_s"]
        began_at = attempt.started_at or attempt.created_at
        ends_by = began_at + timedelta(seconds=limit_s) if limit_s else None
        user = stage.job.user.get_username()
        yield stage.job_id, Affected(stage.job.number, stage.name, user, part.node.name, ends_by)
