"""Usage of devices by day, project, user, job, pool and model, from the ledger: sums, costs, energy and fair share."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models import Max, Min, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.natural import natural_key
from controlplane.queries.refusals import Unanswerable, Unseen
from controlplane.usage.days import day_of
from controlplane.usage.models import LedgerDay, LedgerMark
from controlplane.usage.prices import TARIFF

LONGEST: Final = timedelta(days=1100)
USUAL_DAYS: Final = 30
MOST_ROWS: Final = 20_000
# By job, usage is of the jobs that were charged most; the rest is told as one sum of each kind of device.
MOST_JOBS: Final = 10_000
USUAL_JOBS: Final = 1_000
LONGEST_BY_JOB: Final = timedelta(days=92)
# What rows may be grouped by, with the column of each. The kind of device always is one: hours of different kinds are
# never added up.
_BY: Final = {
    "day": "l.day",
    "project": "o.name",
    "user": "u.username",
    "job": "j.number",
    "pool": "q.name",
    "model": "l.model",
}
GROUPS: Final = tuple(_BY)


class UsageRow(msgspec.Struct, frozen=True):
    """The use of devices of one kind; ``day``, ``project``, ``user``, ``job``, ``pool`` and ``model`` are set if
    grouped by. ``job`` is a number; ``job_name`` is null for who may see the usage of a job but not the job.

    Seconds of a device, of CPU of a core. ``allocated`` is ``busy``, ``idle`` and ``unknown``, the last of which had no
    measurement. ``charged`` is ``allocated`` weighted by the speed of the devices, as for fair share, and may be added
    over kinds. What was lost since the newest checkpoint is part of ``allocated``. ``energy_j`` is null if no power was
    measured, and was measured for ``powered_device_s``. ``cost`` is null if nothing of it has a price, and leaves
    ``unpriced_device_s`` out. ``co2_g`` is null without energy or where the installation does not tell it.
    """

    kind: str
    day: date | None
    project: str | None
    user: str | None
    job: int | None
    job_name: str | None
    pool: str | None
    model: str | None
    allocated_device_s: float
    busy_device_s: float
    idle_device_s: float
    unknown_device_s: float
    lost_preempted_device_s: float
    lost_failed_device_s: float
    charged_device_s: float
    attempts: int
    energy_j: float | None
    powered_device_s: float
    co2_g: float | None
    cost: float | None
    unpriced_device_s: float


class ProjectShare(msgspec.Struct, frozen=True):
    """The fair share of a project: ``target`` by its weight, ``received`` by charged device time, both of 1, among the
    projects that used devices in this time or wait for some."""

    project: str
    weight: float
    target: float
    received: float


class UsageReport(msgspec.Struct, frozen=True):
    """Usage from the first to the last UTC day, both included. ``as_of`` is when today was counted; ``is_complete``
    tells whether all days of the range were, by job too if that is asked. ``is_cut`` tells that there are more rows.

    By job, ``results`` are of the jobs that were charged most, of ``job_count`` that are still there. ``rest`` has a
    row for each kind of device with what all others used, also those that retention has removed, so that both add up to
    the usage of all; else it is empty and ``job_count`` null.
    """

    from_day: date
    to_day: date
    by: list[str]
    as_of: datetime | None
    is_complete: bool
    is_cut: bool
    currency: str
    results: list[UsageRow]
    rest: list[UsageRow]
    job_count: int | None
    shares: list[ProjectShare]


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which usage is asked for: days, both included, the groups, one project or all, and by job of how many."""

    first: date
    last: date
    by: tuple[str, ...]
    project: str = ""
    most_jobs: int = USUAL_JOBS


def asked(
    first: str = "", last: str = "", by: str = "project", project: str = "", most_jobs: int = USUAL_JOBS
) -> UsageQuery:
    """Read a query; raises :class:`Unanswerable` with what would be accepted. Without days it is the last thirty."""
    until = _day("to", last, day_of(timezone.now()))
    since = _day("from", first, until - timedelta(days=USUAL_DAYS - 1))
    if not since <= until <= since + LONGEST:
        raise Unanswerable(_("from must not be after to, and at most {most} days before").format(most=LONGEST.days))
    groups = tuple(dict.fromkeys(word.strip() for word in by.split(",") if word.strip()))
    if unknown := [word for word in groups if word not in _BY]:
        detail = _("by must name some of {known}, separated by commas, not {unknown!r}")
        raise Unanswerable(detail.format(known=", ".join(_BY), unknown=unknown[0][:40]))
    if "job" in groups and until > since + LONGEST_BY_JOB:
        raise Unanswerable(_("by job, from must be at most {most} days before to").format(most=LONGEST_BY_JOB.days))
    return UsageQuery(since, until, groups, project, most_jobs)


def _day(name: str, text: str, usual: date) -> date:
    if not text:
        return usual
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or not 2000 <= found.year <= 9000:
        raise Unanswerable(_("{name} must be a day such as 2027-01-31").format(name=name))
    return found


_CHOSEN: Final = """day >= %(first)s AND day <= %(last)s
        AND (%(project)s::uuid IS NULL OR project_id = %(project)s)
        AND (%(all)s OR user_id = %(user)s OR project_id = ANY(%(projects)s::uuid[]))"""
_LEDGER: Final = f"SELECT *, NULL::bigint AS job_count FROM usage_ledgerentry WHERE {_CHOSEN}"
# First which jobs were charged most, then all entries of only those.
_JOBS: Final = f"""
SELECT e.*, j.pool_id, top.job_count FROM (
    SELECT job_id, count(*) OVER () AS job_count FROM usage_jobentry WHERE {_CHOSEN}
    GROUP BY job_id ORDER BY sum(charged_ms::float8) DESC, job_id LIMIT %(most_jobs)s) top
JOIN usage_jobentry e ON e.job_id = top.job_id AND e.day >= %(first)s AND e.day <= %(last)s
JOIN jobs_job j ON j.id = e.job_id
"""
_SUMS: Final = """
WITH chosen AS MATERIALIZED ({chosen}), tariff AS ({tariff})
SELECT l.kind, {columns}, {job_name}, sum(l.allocated_ms)::float8 / 1000, sum(l.busy_ms)::float8 / 1000,
       sum(l.known_ms - l.busy_ms)::float8 / 1000, sum(l.allocated_ms - l.known_ms)::float8 / 1000,
       sum(l.preempted_ms)::float8 / 1000, sum(l.failed_ms)::float8 / 1000, sum(l.charged_ms)::float8 / 1000,
       sum(l.attempts)::bigint, sum(l.millijoules)::float8 / 1000, sum(l.powered_ms)::float8 / 1000,
       sum(l.allocated_ms * t.per_device_hour) / 3600000,
       coalesce(sum(l.allocated_ms) FILTER (WHERE t.per_device_hour IS NULL), 0)::float8 / 1000, max(l.job_count)
FROM chosen l LEFT JOIN tariff t ON (t.day, t.kind, t.model) = (l.day, l.kind, l.model)
     {joins}
GROUP BY l.kind {groups} ORDER BY {order} LIMIT %(most)s
"""
# The name of a job is for who may see the job, which is not everybody who may see its usage.
_JOB_NAME: Final = """
min(j.name) FILTER (WHERE %(sees_jobs)s OR j.user_id = %(user)s OR j.project_id = ANY(%(joined)s::uuid[]))
"""
_JOINS: Final = {
    "project": "JOIN access_project o ON o.id = l.project_id",
    "user": "JOIN access_user u ON u.id = l.user_id",
    "job": "JOIN jobs_job j ON j.id = l.job_id",
    "pool": "JOIN pools_pool q ON q.id = l.pool_id",
}


def usage(user: User, query: UsageQuery) -> UsageReport:
    """The usage that this user may see: their own, that of their projects, and with the permission that of all.

    Raises :class:`Unseen` for a project that they may not see.
    """
    sees_all, joined = permissions.may(user, Permit.SEE_USAGE), permissions.joined(user)
    values: dict[str, Any] = {"first": query.first, "last": query.last, "project": None, "most": MOST_ROWS + 1}
    values |= {"all": sees_all, "user": user.pk, "projects": joined, "joined": joined, "most_jobs": query.most_jobs}
    values |= {"sees_jobs": permissions.may(user, Permit.SEE_JOBS)}
    if query.project:
        visible = Project.objects.all() if sees_all else permissions.visible_projects(user)
        chosen = visible.filter(name=query.project).first()
        if chosen is None:
            raise Unseen(_("project {name}").format(name=query.project[:63]))
        values["project"] = chosen.pk
    rows = _summed(query.by, values)
    results = [_row(row) for row in rows[:MOST_ROWS]]
    by_job = "job" in query.by
    days = LedgerDay.objects.filter(day__gte=query.first, day__lte=query.last)
    known = days.aggregate(as_of=Max("built_at"))
    return UsageReport(
        from_day=query.first,
        to_day=query.last,
        by=list(query.by),
        as_of=known["as_of"],
        is_complete=_is_complete(query),
        is_cut=len(rows) > MOST_ROWS,
        currency=settings.CURRENCY,
        results=results,
        rest=_rest([_row(row) for row in _summed((), values)], results) if by_job else [],
        job_count=(rows[0][-1] if rows else 0) if by_job else None,
        shares=_shares(query, sees_all, set(joined)),
    )


def _summed(by: tuple[str, ...], values: dict[str, Any]) -> list[Any]:
    """The rows of these groups, as the database has them."""
    named = [_BY[name] for name in GROUPS if name in by]
    statement = _SUMS.format(
        chosen=_JOBS if "job" in by else _LEDGER,
        tariff=TARIFF.format(days="SELECT DISTINCT day, kind, model FROM chosen"),
        columns=", ".join(_BY[name] if name in by else "NULL" for name in GROUPS),
        job_name=_JOB_NAME if "job" in by else "NULL",
        joins=" ".join(join for name, join in _JOINS.items() if name in by),
        groups="".join(f", {name}" for name in named),
        order=", ".join([*(["l.day"] if "day" in by else []), "sum(l.charged_ms) DESC", "l.kind", *named]),
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


# What adds up over rows; energy and cost where they are known.
_ADDED: Final = tuple(
    name
    for name in UsageRow.__struct_fields__
    if name.endswith("_device_s") or name in ("attempts", "energy_j", "cost")
)


def _rest(whole: Sequence[UsageRow], told: Sequence[UsageRow]) -> list[UsageRow]:
    """What is left of the whole, by kind of device, without the rows that are told."""
    left = []
    for row in whole:
        found: dict[str, Any] = {}
        for name in _ADDED:
            if (amount := getattr(row, name)) is not None:
                of_kind = (getattr(one, name) or 0 for one in told if one.kind == row.kind)
                # Both were read one after the other: what runs may have been counted again meanwhile.
                found[name] = max(0, round(amount - sum(of_kind), 4))
        if found["allocated_device_s"] > 0:
            left.append(msgspec.structs.replace(row, **found, co2_g=co2_g(found.get("energy_j"))))
    return left


def project_names(user: User) -> list[str]:
    """The names of the projects whose usage this user may see, in natural order."""
    seen = Project.objects.all() if permissions.may(user, Permit.SEE_USAGE) else permissions.visible_projects(user)
    return sorted(seen.values_list("name", flat=True), key=natural_key)


def _is_complete(query: UsageQuery) -> bool:
    """Whether all days of the range that ever had a claim are counted, and by job where that is asked."""
    first = LedgerDay.objects.aggregate(first=Min("day"))["first"]
    missing = Q(has_jobs=False) if "job" in query.by else Q(built_at=None)
    return (
        first is not None and not LedgerDay.objects.filter(missing, day__gte=query.first, day__lte=query.last).exists()
    )


def _row(row: Sequence[Any]) -> UsageRow:
    kind, day, project, user, job, pool, model, job_name, allocated, busy, idle, unknown, *rest = row
    preempted, failed, charged, attempts, joules, powered, cost, unpriced, _job_count = rest
    energy_j = joules if powered > 0 else None
    return UsageRow(
        kind=kind,
        day=day,
        project=project,
        user=user,
        job=job,
        job_name=job_name,
        pool=pool,
        model=model,
        allocated_device_s=allocated,
        busy_device_s=busy,
        idle_device_s=idle,
        unknown_device_s=unknown,
        lost_preempted_device_s=preempted,
        lost_failed_device_s=failed,
        charged_device_s=charged,
        attempts=attempts,
        energy_j=energy_j,
        powered_device_s=powered,
        co2_g=co2_g(energy_j),
        cost=in_currency(cost),
        unpriced_device_s=unpriced,
    )


def co2_g(energy_j: float | None) -> float | None:
    """The grams of CO2 of this energy; None where energy or the installation's figure is unknown."""
    if energy_j is None or settings.CO2_G_PER_KWH is None:
        return None
    return round(energy_j / 3_600_000 * settings.CO2_G_PER_KWH, 1)


def in_currency(amount: Decimal | None) -> float | None:
    """An amount rounded to a hundredth of a cent; None for none."""
    return None if amount is None else round(float(amount), 4)


_RECEIVED: Final = """
SELECT p.id, p.name, p.weight, coalesce(sum(l.charged_ms), 0)::float8
FROM access_project p LEFT JOIN usage_ledgerentry l
     ON l.project_id = p.id AND l.day >= %(first)s AND l.day <= %(last)s
GROUP BY p.id
HAVING coalesce(sum(l.charged_ms), 0) > 0 OR p.id = ANY(%(waiting)s::uuid[])
ORDER BY p.name
"""


def _shares(query: UsageQuery, sees_all: bool, own: set[UUID]) -> list[ProjectShare]:
    """The shares of the visible projects among all that took part."""
    mark = LedgerMark.objects.first()
    with connection.cursor() as cursor:
        waiting = mark.waiting if mark else []
        cursor.execute(_RECEIVED, {"first": query.first, "last": query.last, "waiting": waiting})
        rows = cursor.fetchall()
    weights, charged = sum(row[2] for row in rows), sum(row[3] for row in rows)
    return [
        ProjectShare(
            project=name,
            weight=weight,
            target=round(weight / weights, 4),
            received=round(received / charged, 4) if charged else 0.0,
        )
        for project, name, weight, received in rows
        if (sees_all or project in own) and query.project in ("", name)
    ]


# -- as a table for accounting

# Columns of the file: its title, the field, and what its values are divided by.
_COLUMNS: Final = (
    ("day", "day", 1),
    ("project", "project", 1),
    ("user", "user", 1),
    ("job", "job", 1),
    ("job_name", "job_name", 1),
    ("pool", "pool", 1),
    ("kind", "kind", 1),
    ("model", "model", 1),
    ("allocated_device_hours", "allocated_device_s", 3600),
    ("busy_device_hours", "busy_device_s", 3600),
    ("idle_device_hours", "idle_device_s", 3600),
    ("unknown_device_hours", "unknown_device_s", 3600),
    ("lost_preempted_device_hours", "lost_preempted_device_s", 3600),
    ("lost_failed_device_hours", "lost_failed_device_s", 3600),
    ("charged_device_hours", "charged_device_s", 3600),
    ("attempts", "attempts", 1),
    ("energy_kwh", "energy_j", 3_600_000),
    ("co2_g", "co2_g", 1),
    ("cost", "cost", 1),
    ("unpriced_device_hours", "unpriced_device_s", 3600),
)


def as_csv(found: UsageReport) -> str:
    """The rows as CSV, with a currency in the title of the cost; groups that were not asked for have no column. By job,
    the rest stands below as ``others``, so that the file adds up."""
    asked_for = {*found.by, *(["job_name"] if "job" in found.by else [])}
    columns = [each for each in _COLUMNS if each[1] not in {*GROUPS, "job_name"} or each[1] in asked_for]
    text = io.StringIO()
    write = csv.writer(text).writerow
    write([f"cost_{found.currency.lower()}" if title == "cost" else title for title, _field, _per in columns])
    for row in found.results:
        write(cell(getattr(row, field), per) for _title, field, per in columns)
    for row in found.rest:
        write("others" if field == "job" else cell(getattr(row, field), per) for _title, field, per in columns)
    return text.getvalue()


def cell(value: Any, per: int = 1) -> str:
    """One cell, empty for an unknown value. Text that a spreadsheet would read as a formula gets an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value / per:.6f}".rstrip("0").rstrip(".")
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "'")) else text
