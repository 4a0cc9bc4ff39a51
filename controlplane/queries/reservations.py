"""Reservations, and the calendar: when nodes are out of service or reserved."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from heapq import merge
from itertools import islice

import django_filters
import msgspec
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet import calendar, reservations
from controlplane.fleet.models import CalendarEntry, MaintenanceWindow, Node
from controlplane.fleet.models import Reservation as Row
from controlplane.queries import maintenance
from controlplane.queries.calendar_entry import EntryFields, EntryFilter, fields_of
from controlplane.queries.refusals import Unanswerable

MOST_SPANS = 2_000


class Reservation(EntryFields, frozen=True):
    """A span in which whole nodes are for jobs of a project, or of some of its users, that name the reservation.

    With ``cron`` it recurs between ``starts_at`` and ``ends_at``: one begins at each time of that line in
    ``time_zone``, and lasts ``lasts_s``. ``next_starts_at`` and ``next_ends_at`` are of the time that is now or next.
    """

    name: str
    project: str
    users: list[str]
    nodes: list[str]


class ReservationFilter(EntryFilter):
    """Filters of reservations; without ``all`` only those that have not ended."""

    project = django_filters.CharFilter("project__name", help_text="Name of a project.")
    node = django_filters.CharFilter("nodes__name", help_text="Name of a node.")
    pool = django_filters.CharFilter(method="in_pool", help_text="Name of a pool: those with a node of it.")

    def in_pool(self, rows: QuerySet[Row], name: str, value: str) -> QuerySet[Row]:
        return rows.filter(nodes__in=Node.objects.filter(pools__name=value)).distinct()


def shown(rows: Iterable[Row], user: User | None = None) -> list[Reservation]:
    """These reservations; everybody sees them, because they keep everybody out. Their users are named to those who see
    the project."""
    now = timezone.now()
    seen = set(permissions.visible_projects(user).values_list("pk", flat=True)) if user else set()
    return [
        Reservation(
            **fields_of(row, now),
            name=row.name,
            project=row.project.name,
            users=[user.get_username() for user in row.users.all()] if row.project_id in seen else [],
            nodes=[node.name for node in row.nodes.all()],
        )
        for row in rows
    ]


class CalendarSpan(msgspec.Struct, frozen=True):
    """One time of a window (``kind`` maintenance, with its ``id``) or of a reservation (with its ``name``): the nodes
    that it keeps, and for which ``project``."""

    kind: str
    id: int | None
    name: str
    project: str
    pool: str | None
    nodes: list[str]
    starts_at: datetime
    ends_at: datetime
    recurs: bool
    reason: str


class Calendar(msgspec.Struct, frozen=True):
    """What keeps nodes between two times, the earliest first; ``more`` says that there is more than is shown."""

    since: datetime
    until: datetime
    more: bool
    results: list[CalendarSpan]


def spans(since: datetime, until: datetime, pool: str = "") -> Calendar:
    """The calendar from ``since`` until ``until``, of all nodes or of those of one pool."""
    if until <= since:
        raise Unanswerable(_("until must be later than since"))
    inside = {"cancelled_at": None, "starts_at__lt": until, "ends_at__gt": since}
    windows = maintenance.windows().filter(**inside)
    kept = reservations.rows().filter(**inside)
    if pool:
        windows = windows.filter(Q(pool__name=pool) | Q(node__pools__name=pool)).distinct()
        kept = kept.filter(nodes__in=Node.objects.filter(pools__name=pool)).distinct()
    # Each entry tells its times in order, so only those that are shown are made.
    order = merge(*(_times(row, since, until) for row in (*windows, *kept)), key=_when)
    found = list(islice(order, MOST_SPANS + 1))
    return Calendar(since, until, len(found) > MOST_SPANS, found[:MOST_SPANS])


def _when(one: CalendarSpan) -> tuple[object, ...]:
    return one.starts_at, one.kind, one.name, one.id or 0


def _times(row: CalendarEntry, since: datetime, until: datetime) -> Iterable[CalendarSpan]:
    of: dict[str, object]
    if isinstance(row, Row):
        of = {"kind": "reservation", "id": None, "name": row.name, "project": row.project.name, "pool": None}
        nodes = [node.name for node in row.nodes.all()]
    else:
        assert isinstance(row, MaintenanceWindow)
        of = {"kind": "maintenance", "id": row.pk, "name": "", "project": ""}
        of["pool"] = row.pool.name if row.pool else None
        nodes = [row.node.name] if row.node else []
    for starts_at, ends_at in calendar.times(row, since, until):
        yield CalendarSpan(
            **of,  # type: ignore[arg-type]
            nodes=nodes,
            starts_at=starts_at,
            ends_at=ends_at,
            recurs=bool(row.cron),
            reason=row.reason,
        )
