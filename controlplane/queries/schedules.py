"""Schedules: job files that are submitted again and again, with their next times and what became of the last ones."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any

import django_filters
import msgspec
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane import cron
from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.schedules.models import Schedule as Row
from controlplane.schedules.models import ScheduleRun as RunRow

NEXT = 5
RUNS = 20


class ScheduleRun(msgspec.Struct, frozen=True):
    """What became of one time of a schedule. ``job`` is the number of the job or array (``is_array``) that was
    submitted, else ``detail`` says why none was."""

    due_at: datetime
    at: datetime
    outcome: str
    job: int | None
    is_array: bool
    detail: str


class Schedule(msgspec.Struct, frozen=True):
    """A job file that is submitted as ``user`` at each time of a cron line in a time zone.

    ``next_at`` is null while it is paused, and after its last time. ``fault`` is why the newest submission was refused;
    it is paused after ten in a row (``refusals``). ``last`` is its newest run.
    """

    id: int
    name: str
    project: str
    user: str
    cron: str
    zone: str
    overlap: str
    catch_up: str
    starts_at: datetime | None
    ends_at: datetime | None
    paused: bool
    next_at: datetime | None
    fault: str
    refusals: int
    last: ScheduleRun | None


class ScheduleDetail(msgspec.Struct, frozen=True):
    """A schedule with its job file, its next five times and its newest twenty runs."""

    schedule: Schedule
    job: dict[str, Any]
    times: list[datetime]
    runs: list[ScheduleRun]


class ScheduleFilter(django_filters.FilterSet):
    """Filters of schedules."""

    project = django_filters.CharFilter("project__name", help_text="Name of a project.")
    name = django_filters.CharFilter("name", help_text="Name of a schedule.")
    user = django_filters.CharFilter("user__username", help_text="Name of its owner.")


def visible(user: User) -> QuerySet[Row]:
    """The schedules that this user may see: their own, and those of their projects."""
    rows = Row.objects.select_related("project", "user")
    if permissions.may(user, Permit.SEE_JOBS):
        return rows
    return rows.filter(Q(user=user) | Q(project__in=permissions.joined(user)))


def shown(rows: Iterable[Row], user: User) -> list[Schedule]:
    """These schedules with their newest runs."""
    rows = list(rows)
    newest = RunRow.objects.filter(schedule__in=rows).order_by("schedule_id", "-due_at").distinct("schedule_id")
    last = {each.schedule_id: run(each) for each in newest}
    return [
        Schedule(
            id=row.pk,
            name=row.name,
            project=row.project.name,
            user=row.user.get_username(),
            cron=row.cron,
            zone=row.zone,
            overlap=row.overlap,
            catch_up=row.catch_up,
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            paused=row.is_paused,
            next_at=row.next_at,
            fault=row.fault,
            refusals=row.refusals,
            last=last.get(row.pk),
        )
        for row in rows
    ]


def detail(row: Row, user: User) -> ScheduleDetail:
    """This schedule with its job file, its next times and its newest runs."""
    return ScheduleDetail(shown([row], user)[0], row.job, _times(row), [run(each) for each in row.runs.all()[:RUNS]])


def _times(row: Row) -> list[datetime]:
    if row.next_at is None:
        return []
    following = cron.times(row.cron, row.zone, max(row.next_at, timezone.now()))
    return [at for at in (row.next_at, *islice(following, NEXT - 1)) if row.ends_at is None or at <= row.ends_at]


def run(row: RunRow) -> ScheduleRun:
    """What became of one time of a schedule."""
    return ScheduleRun(row.due_at, row.at, row.outcome, row.number, row.is_array, row.detail)
