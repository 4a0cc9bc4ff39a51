"""Budgets of device-hours: what is used of each, and when it ends at the present rate.

Used is what the ledger has of the days of the period, and what is held now since the ledger was counted. The present
rate is the mean of the last seven days, from the first of them on which anything was used: nothing cleverer, so that
anybody can check it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import clause, told
from controlplane.fleet.world import parsed
from controlplane.jobs import service
from controlplane.jobs.models import Claim, Stage
from controlplane.pools.models import Budget
from controlplane.usage.days import begin_of, day_of
from controlplane.usage.models import LedgerDay
from scheduler.core.model.lifecycle import Cause, StageEvent, sources
from scheduler.core.resources import charges

RECENT_DAYS: Final = 7
HOUR_MS: Final = 3_600_000

_COUNTED: Final = """
SELECT b.id, coalesce(sum(l.ms) FILTER (WHERE l.day BETWEEN b.first AND b.last), 0)::float8,
       coalesce(sum(l.ms) FILTER (WHERE l.day >= %(recent)s), 0)::float8, min(l.day) FILTER (WHERE l.day >= %(recent)s)
FROM unnest(%(ids)s::bigint[], %(projects)s::uuid[], %(kinds)s::text[], %(normalised)s::bool[], %(firsts)s::date[],
            %(lasts)s::date[]) AS b(id, project, kind, normalised, first, last)
     LEFT JOIN LATERAL (
         SELECT day, CASE WHEN b.normalised THEN charged_ms ELSE allocated_ms END AS ms FROM usage_ledgerentry
         WHERE project_id = b.project AND day >= least(b.first, %(recent)s) AND day <= greatest(b.last, %(today)s)
             AND CASE b.kind WHEN '' THEN kind <> 'cpu' ELSE kind = b.kind END) l ON true
GROUP BY b.id
"""
# Since the ledger was counted; before that, all is in it.
_HELD: Final = """
SELECT j.project_id, d.kind, d.features::text,
       sum(c.milli * greatest(0, extract(epoch FROM %(now)s - greatest(c.opened_at, %(since)s))))::float8
FROM jobs_claim c JOIN fleet_device d ON d.id = c.device_id JOIN jobs_part p ON p.id = c.part_id
     JOIN jobs_attempt a ON a.id = p.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
     JOIN jobs_job j ON j.id = s.job_id
WHERE c.closed_at IS NULL AND j.project_id = ANY(%(projects)s::uuid[])
GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class Count:
    """What is used of a budget in its period (UTC days, both included), which ends at ``until_at``.

    ``hours_per_day`` is the present rate, ``ends_at`` when the budget is used up at it, and ``forecast_hours`` what
    will then be used in the whole period. The first two are None where the period is not now, or nothing runs out.
    """

    first_day: date
    last_day: date
    until_at: datetime
    used_hours: float
    hours_per_day: float | None
    ends_at: datetime | None
    forecast_hours: float


def period_of(budget: Budget, today: date) -> tuple[date, date]:
    """Return the first and the last day of the period of a budget that a day is in; of days it is always the same."""
    if budget.first_day and budget.last_day:
        return budget.first_day, budget.last_day
    months = 1 if budget.period == Budget.Period.MONTH else 3
    first = today.replace(month=(today.month - 1) // months * months + 1, day=1)
    following = (first + timedelta(days=31 * months + 1)).replace(day=1)
    return first, following - timedelta(days=1)


def count(budgets: Iterable[Budget], now: datetime) -> dict[int, Count]:
    """Return what is used of these budgets, by number."""
    budgets = list(budgets)
    today = day_of(now)
    recent = today - timedelta(days=RECENT_DAYS - 1)
    periods = {one.pk: period_of(one, today) for one in budgets}
    values: dict[str, Any] = {
        "ids": [one.pk for one in budgets],
        "projects": [one.project_id for one in budgets],
        "kinds": [one.kind for one in budgets],
        "normalised": [one.normalised for one in budgets],
        "firsts": [periods[one.pk][0] for one in budgets],
        "lasts": [periods[one.pk][1] for one in budgets],
        "recent": recent,
        "today": today,
    }
    newest = LedgerDay.objects.exclude(built_at=None).order_by("-day").first()
    since = max((newest and newest.built_at) or begin_of(today), begin_of(today))
    held: dict[object, list[tuple[str, float, float]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(_COUNTED, values)
        counted = {pk: rest for pk, *rest in cursor.fetchall()}
        cursor.execute(_HELD, {"projects": values["projects"], "now": now, "since": since})
        for project, kind, features, ms in cursor.fetchall():
            held[project].append((kind, charges.of(kind, parsed(features)), ms))
    found = {}
    for one in budgets:
        (first, last), (used_ms, recent_ms, since_day) = periods[one.pk], counted[one.pk]
        running_ms = sum(
            ms * (worth if one.normalised else 1.0)
            for kind, worth, ms in held[one.project_id]
            if (kind == one.kind if one.kind else kind != "cpu")
        )
        is_now = first <= today <= last
        used = (used_ms + (running_ms if is_now else 0.0)) / HOUR_MS
        until = begin_of(last + timedelta(days=1))
        rate = ends = None
        forecast = used
        if is_now:
            days = max((now - begin_of(since_day or today)) / timedelta(days=1), 1 / 24)
            rate = (recent_ms + running_ms) / HOUR_MS / days
            left = (until - now) / timedelta(days=1)
            forecast = used + rate * left
            if used >= one.hours:
                ends = now
            elif forecast > one.hours:
                ends = now + (one.hours - used) / rate * timedelta(days=1)
        found[one.pk] = Count(first, last, until, used, rate, ends, forecast)
    return found


def refresh(budgets: Iterable[Budget], now: datetime | None = None) -> None:
    """Write down what is used of these budgets, by which the scheduler goes, and stop what is to be stopped.

    A level that is not reached any more, because the period is new or the budget was raised, may be told again.
    """
    budgets, now = list(budgets), now or timezone.now()
    if not budgets:
        return
    for pk, found in count(budgets, now).items():
        with transaction.atomic():
            row = Budget.objects.select_for_update().filter(pk=pk).first()
            if row is None:
                continue
            row.used_hours, row.until_at, row.counted_at = found.used_hours, found.until_at, now
            row.told = min(row.told, row.level)
            row.save(update_fields=["used_hours", "until_at", "counted_at", "told"])
        if row.at_end == Budget.AtEnd.STOP and row.used_hours >= row.hours and found.first_day <= day_of(now):
            _stop(row, now)
    transaction.on_commit(changes.wake)


def _stop(budget: Budget, now: datetime) -> None:
    """Ask what a used up budget pays for to save and stop; it waits again then, at no cost of its retries."""
    if budget.until_at is None or budget.until_at <= now:
        return
    claims = Claim.objects.filter(closed_at=None, part__attempt__ended_at=None)
    claims = claims.filter(device__kind=budget.kind) if budget.kind else claims.exclude(device__kind="cpu")
    paid = Stage.objects.filter(
        job__project=budget.project_id,
        state__in=sources(StageEvent.STOP),
        pk__in=claims.values("part__attempt__stage"),
    )
    why = told(clause("BudgetUsedUp", budget=budget.pk, project=budget.project.name))
    for job_id in sorted(set(paid.values_list("job_id", flat=True))):
        with transaction.atomic():
            job = service.lock([job_id])[job_id]
            stages = list(job.stages.filter(pk__in=paid.values("pk")))
            notes = service.stop([job], stages, Cause.REQUEUED, now, note=why)
            service.settle([job], notes, now, stages)
