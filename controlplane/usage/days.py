"""Which UTC days of the ledger are to be computed, and computed again after something about them changed."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max, Min

from controlplane.jobs.models import Claim
from controlplane.usage.models import LedgerDay, LedgerMark

# Changes are looked for again for this long, because a row may become visible after later ones.
OVERLAP: Final = timedelta(minutes=2)

# A day is computed again only while none of its jobs can have been removed; before its first time it always is.
_MARK: Final = """
INSERT INTO usage_ledgerday AS d (day, is_due) SELECT day, true FROM ({days}) AS found(day)
ON CONFLICT (day) DO UPDATE SET is_due = true WHERE d.built_at IS NULL OR d.day >= %(oldest)s
"""
_SPAN: Final = "SELECT generate_series(%(first)s::date, %(last)s::date, interval '1 day')::date"
_CHANGED: Final = """
SELECT DISTINCT generate_series((c.opened_at AT TIME ZONE 'UTC')::date,
                                (least(c.closed_at, %(now)s) AT TIME ZONE 'UTC')::date, interval '1 day')::date
FROM jobs_claim c WHERE c.opened_at > %(since)s OR c.closed_at > %(since)s
"""
# Usage by job is added to a day however old it is.
_DUE: Final = """
SELECT day FROM usage_ledgerday WHERE day <= %(today)s AND (NOT has_jobs
    OR (is_due OR built_at < (day + 1)::timestamp AT TIME ZONE 'UTC') AND (built_at IS NULL OR day >= %(oldest)s))
ORDER BY day DESC
"""


def day_of(moment: datetime) -> date:
    """Return the UTC day of a moment."""
    return moment.astimezone(UTC).date()


def begin_of(day: date) -> datetime:
    """Return the moment at which a UTC day begins."""
    return datetime.combine(day, time(), UTC)


def oldest(now: datetime) -> date:
    """Return the oldest day that may be computed again: retention has removed no job that held devices since then."""
    return day_of(now) - timedelta(days=max(2, settings.RETENTION_LEAST_DAYS["jobs"]) - 1)


def mark_due(first: date, last: date, now: datetime) -> None:
    """Mark these days as due, both included."""
    with connection.cursor() as cursor:
        cursor.execute(_MARK.format(days=_SPAN), {"first": first, "last": last, "oldest": oldest(now)})


def mark_changes(now: datetime) -> None:
    """Mark the days of all claims that were opened or closed since the last call, and all days up to today.

    The first call marks all days since the oldest claim, and begins with the oldest measurements.
    """
    with transaction.atomic():
        mark = LedgerMark.objects.select_for_update().first()
        if mark is None:
            kept = timedelta(days=settings.RETENTION_DAYS["samples"])
            first = Claim.objects.aggregate(first=Min("opened_at"))["first"] or now
            begin = max(first, now - kept).replace(second=0, microsecond=0)
            _row, is_new = LedgerMark.objects.get_or_create(
                pk=1, defaults={"measured_until": begin, "changes_until": now}
            )
            if is_new:
                mark_due(day_of(min(first, now)), day_of(now), now)
            return
        newest = LedgerDay.objects.aggregate(day=Max("day"))["day"] or day_of(now)
        if newest < day_of(now):
            mark_due(newest, day_of(now), now)
        with connection.cursor() as cursor:
            since = mark.changes_until - OVERLAP
            cursor.execute(_MARK.format(days=_CHANGED), {"since": since, "now": now, "oldest": oldest(now)})
        mark.changes_until = max(mark.changes_until, now)
        mark.save(update_fields=["changes_until"])


def due(now: datetime) -> list[date]:
    """Return the days to compute, the newest first; today is always among them once it is known."""
    with connection.cursor() as cursor:
        cursor.execute(_DUE, {"today": day_of(now), "oldest": oldest(now)})
        return [day for (day,) in cursor.fetchall()]
