"""Computes the entries of a UTC day from claims, the ends of attempts and meters.

Claims that are still open count up to now, and over midnight to each day its part. Computing a day again gives the same
entries, however often and in whatever order.
"""

from __future__ import annotations

import logging
import time
from datetime import date, datetime, timedelta
from typing import Any, Final

from django.db import DatabaseError, connection, transaction

from controlplane.fleet.world import parsed
from controlplane.jobs.models import Job
from controlplane.usage import days, meter
from controlplane.usage.models import LedgerDay, LedgerEntry, LedgerMark
from scheduler.core.model.lifecycle import Cause, State
from scheduler.core.resources import charges

log = logging.getLogger(__name__)

# The scheduler stopped the attempt, and it goes on later or elsewhere.
EVICTED: Final = frozenset({Cause.PREEMPTED, Cause.MOVE, Cause.RESIZE})
# What its owner or the rule of its sweep ended, what saved before it stopped, and what never ran lost nothing.
FAILED: Final = (
    frozenset(Cause) - EVICTED - {Cause.CANCELLED, Cause.EARLY_STOPPED, Cause.CHECKPOINTED, Cause.DEPENDENCY}
)

# Lost is the time since the newest checkpoint of an attempt that was evicted or failed. PostgreSQL cannot estimate how
# many claims overlap a day, and would read whole tables: what belongs to a claim is looked up one by one (OFFSET 0).
# Entries of jobs are written only where they differ, and the sums of all are returned, by what the ledger keeps.
_OF_DAY: Final = """
WITH held AS MATERIALIZED (
    SELECT c.id, c.part_id, c.device_id, c.milli, c.opened_at, greatest(c.opened_at, %(begin)s) AS first,
           greatest(least(c.closed_at, %(until)s), c.opened_at, %(begin)s) AS last
    FROM jobs_claim c WHERE c.opened_at < %(until)s AND (c.closed_at IS NULL OR c.closed_at > %(begin)s)
), owners AS MATERIALIZED (
    SELECT parts.part_id, o.* FROM (SELECT DISTINCT part_id FROM held) parts CROSS JOIN LATERAL (
        SELECT s.job_id, a.id AS attempt_id, a.cause,
               CASE WHEN a.cause = ANY(%(lost)s)
                    THEN (SELECT max(at) FROM jobs_checkpoint WHERE attempt_id = a.id) END AS saved_at
        FROM jobs_part p JOIN jobs_attempt a ON a.id = p.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
        WHERE p.id = parts.part_id OFFSET 0) o
), told AS (
    SELECT o.job_id, d.kind, d.model, coalesce(w.charge, 1) AS charge, o.cause,
           h.milli * extract(epoch FROM h.last - h.first) AS ms,
           h.milli * greatest(0, extract(epoch FROM h.last - greatest(h.first, o.saved_at))) AS lost_ms,
           coalesce(m.known_ms, 0) AS known_ms, coalesce(m.busy_ms, 0) AS busy_ms,
           coalesce(m.powered_ms, 0) AS powered_ms, coalesce(m.millijoules, 0) AS millijoules,
           h.opened_at >= %(begin)s
               AND row_number() OVER (PARTITION BY o.attempt_id ORDER BY d.kind = 'cpu', h.id) = 1 AS begins
    FROM held h JOIN owners o ON o.part_id = h.part_id JOIN fleet_device d ON d.id = h.device_id
         LEFT JOIN unnest(%(kinds)s::text[], %(features)s::text[], %(charges)s::numeric[]) w(kind, features, charge)
             ON (w.kind, w.features) = (d.kind, d.features::text)
         LEFT JOIN LATERAL (
             SELECT known_ms, busy_ms, powered_ms, millijoules FROM usage_claimmeter
             WHERE claim_id = h.id AND day = %(day)s OFFSET 0) m ON true
), counted AS MATERIALIZED (
    SELECT j.*, x.* FROM (SELECT job_id, kind, model, {sums} FROM told GROUP BY 1, 2, 3 OFFSET 0) x
    CROSS JOIN LATERAL (SELECT project_id, user_id, pool_id FROM jobs_job WHERE id = x.job_id OFFSET 0) j
), gone AS (
    DELETE FROM usage_jobentry e WHERE e.day = %(day)s AND NOT EXISTS (
        SELECT FROM counted c WHERE (c.job_id, c.kind, c.model) = (e.job_id, e.kind, e.model))
), changed AS (
    UPDATE usage_jobentry e SET ({names}) = ROW({values}) FROM counted c
    WHERE e.day = %(day)s AND (c.job_id, c.kind, c.model) = (e.job_id, e.kind, e.model)
        AND ({old}) IS DISTINCT FROM ({values})
), added AS (
    INSERT INTO usage_jobentry (day, job_id, kind, model, {names})
    SELECT %(day)s, c.job_id, c.kind, c.model, {values} FROM counted c WHERE NOT EXISTS (
        SELECT FROM usage_jobentry e
        WHERE e.day = %(day)s AND (c.job_id, c.kind, c.model) = (e.job_id, e.kind, e.model))
)
SELECT project_id, user_id, pool_id, kind, model, {totals} FROM counted GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""
_SUMS: Final = {
    "allocated_ms": "floor(sum(ms))",
    "charged_ms": "round(sum(ms * charge))",
    "attempts": "count(*) FILTER (WHERE begins)",
    "known_ms": "sum(least(known_ms, floor(ms)))",
    "busy_ms": "sum(least(busy_ms, known_ms, floor(ms)))",
    "preempted_ms": "coalesce(floor(sum(lost_ms) FILTER (WHERE cause = ANY(%(evicted)s))), 0)",
    "failed_ms": "coalesce(floor(sum(lost_ms) FILTER (WHERE cause = ANY(%(failed)s))), 0)",
    "powered_ms": "sum(least(powered_ms, floor(ms)))",
    "millijoules": "sum(millijoules)",
}
_STORED: Final = ("project_id", "user_id", *_SUMS)
_BUILD: Final = _OF_DAY.format(
    sums=", ".join(f"{sql}::bigint AS {name}" for name, sql in _SUMS.items()),
    names=", ".join(_STORED),
    values=", ".join(f"c.{name}" for name in _STORED),
    old=", ".join(f"e.{name}" for name in _STORED),
    totals=", ".join(f"sum({name})::bigint" for name in _SUMS),
)
_OF_ENTRY: Final = ("project_id", "user_id", "pool_id", "kind", "model", *_SUMS)


def refresh(now: datetime, longest_s: float = 20.0) -> None:
    """Bring meters and days up to ``now``, in steps of a transaction each, until done or the time is up.

    What is left is done by later calls; calls at the same time wait for each other and change nothing twice.
    """
    until = time.monotonic() + longest_s
    days.mark_changes(now)
    _note_who_waits()
    meter.catch_up(now, until)
    for day in days.due(now):
        try:
            build(day, now)
        except DatabaseError as error:
            # It stays due; one that fails does not keep others from being counted.
            log.warning("usage of %s was not counted: %s", day, error)
        if time.monotonic() > until:
            return


def _note_who_waits() -> None:
    """Store which projects have waiting jobs: reading that from many jobs is too slow for a request."""
    waiting = Job.objects.filter(state=State.PENDING).order_by().values_list("project_id", flat=True).distinct()
    LedgerMark.objects.update(waiting=sorted(map(str, waiting)))


def build(day: date, now: datetime) -> None:
    """Replace the entries of this day by what the record says of it as of ``now``.

    Of a day that is counted and whose jobs may have been removed, only those of the jobs that are still there.
    """
    begin = days.begin_of(day)
    values: dict[str, Any] = {"day": day, "begin": begin, "until": min(now, begin + timedelta(days=1))}
    values |= {"lost": sorted(EVICTED | FAILED), "evicted": sorted(EVICTED), "failed": sorted(FAILED)}
    with transaction.atomic():
        LedgerDay.objects.get_or_create(day=day)
        known = LedgerDay.objects.select_for_update().get(day=day)
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT kind, features::text FROM fleet_device")
            devices = cursor.fetchall()
            values |= {"kinds": [kind for kind, _ in devices], "features": [features for _, features in devices]}
            cursor.execute(_BUILD, values | {"charges": [charges.of(kind, parsed(text)) for kind, text in devices]})
            rows = cursor.fetchall()
        if known.built_at is None or day >= days.oldest(now):
            LedgerEntry.objects.filter(day=day).delete()
            entries = (LedgerEntry(day=day, **dict(zip(_OF_ENTRY, row, strict=True))) for row in rows)
            LedgerEntry.objects.bulk_create(entries, batch_size=1000)
            known.built_at = now
        known.is_due, known.has_jobs = False, True
        known.save(update_fields=["built_at", "is_due", "has_jobs"])
