"""Adds measurements to the meters of claims, minute by minute, each measurement once.

A minute of a claim counts by the mean of its measurements in that minute; a minute without any stays unknown. Windows
begin and end at whole minutes, so the sums do not depend on how time was divided into windows.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Final

from django.db import connection, transaction

from controlplane.usage import days
from controlplane.usage.models import LedgerMark

MINUTE: Final = timedelta(minutes=1)
# Agents send measurements in batches; later ones are not counted.
LATE: Final = timedelta(minutes=2)
# A window has so many minutes at first and at most. It doubles while it is quick, and halves where it is slow.
FIRST: Final = 1
MOST: Final = 60
QUICK_S, SLOW_S = 0.5, 4.0

# Of an accelerator that is held whole, its utilisation is the claim's. Of one that is shared, the claims share its busy
# time by what each holds of what is held in that minute, none more than it holds; of partitions it is unknown. Of
# cores, it is what the part's processes used of all cores that the part holds. Power counts by the share held.
_ADD: Final = """
WITH held AS MATERIALIZED (
    SELECT c.id AS claim, c.device_id, c.part_id, c.milli, d.kind, d.capacity_milli,
           c.milli >= d.capacity_milli AND c.partition = '' AS is_whole, c.partition = '' AS is_share,
           greatest(c.opened_at, %(since)s) AS first, least(c.closed_at, %(until)s) AS last
    FROM jobs_claim c JOIN fleet_device d ON d.id = c.device_id
    WHERE c.opened_at < %(until)s AND (c.closed_at IS NULL OR c.closed_at > %(since)s)
), parts AS (
    SELECT part_id, min(first) AS first, max(last) AS last, sum(milli) AS milli FROM held WHERE kind = 'cpu' GROUP BY 1
), of_devices AS (
    SELECT h.claim, f.* FROM held h CROSS JOIN LATERAL (
        SELECT date_bin('1 minute', s.at, 'epoch') AS minute, count(s.utilisation) AS samples,
               avg(s.utilisation) AS use, max(s.utilisation) AS most_use, max(s.memory_used_bytes) AS most_memory,
               avg(s.power_w) AS power_w
        FROM fleet_device_sample s WHERE s.device_id = h.device_id AND s.at >= h.first AND s.at < h.last GROUP BY 1) f
), of_parts AS (
    SELECT p.part_id, f.* FROM parts p CROSS JOIN LATERAL (
        SELECT date_bin('1 minute', s.at, 'epoch') AS minute, count(s.cpu) AS samples,
               avg(s.cpu) * 1000 / p.milli AS use, max(s.cpu) AS most_use, max(s.rss_bytes) AS most_memory
        FROM fleet_part_sample s WHERE s.part_id = p.part_id AND s.at >= p.first AND s.at < p.last GROUP BY 1) f
), loads AS (
    SELECT h.claim, f.minute, f.use, nullif(extract(epoch FROM least(h.last, f.minute + interval '1 minute')
                                                              - greatest(h.first, f.minute)), 0) AS held_s,
           sum(o.milli * greatest(0, extract(epoch FROM least(h.last, o.last, f.minute + interval '1 minute')
                                                        - greatest(h.first, o.first, f.minute)))) AS milli_s
    FROM held h JOIN of_devices f ON f.claim = h.claim JOIN held o ON o.device_id = h.device_id
    WHERE h.kind <> 'cpu' AND NOT h.is_whole AND h.is_share AND f.use IS NOT NULL
    GROUP BY h.claim, h.first, h.last, f.minute, f.use
), facts AS (
    SELECT h.claim, f.minute, f.samples, f.use, f.most_use, f.most_memory, NULL::float8 AS power_w
    FROM held h JOIN of_devices f ON f.claim = h.claim WHERE h.kind <> 'cpu' AND h.is_whole
    UNION ALL
    SELECT claim, minute, 0, use * 1000 * held_s::float8 / milli_s::float8, NULL, NULL, NULL
    FROM loads WHERE milli_s > 0
    UNION ALL
    SELECT h.claim, f.minute, f.samples, f.use, f.most_use, f.most_memory, NULL
    FROM held h JOIN of_parts f ON f.part_id = h.part_id WHERE h.kind = 'cpu'
    UNION ALL
    SELECT h.claim, f.minute, 0, NULL, NULL, NULL, f.power_w
    FROM held h JOIN of_devices f ON f.claim = h.claim WHERE f.power_w IS NOT NULL
), timed AS (
    SELECT f.*, h.capacity_milli,
           h.milli * extract(epoch FROM least(h.last, f.minute + interval '1 minute') - greatest(h.first, f.minute))
               AS ms
    FROM facts f JOIN held h ON h.claim = f.claim
)
INSERT INTO usage_claimmeter AS m
    (claim_id, day, samples, known_ms, busy_ms, powered_ms, millijoules, most_use, most_memory_bytes)
SELECT claim, (minute AT TIME ZONE 'UTC')::date, sum(samples),
       coalesce(sum(floor(ms)) FILTER (WHERE use IS NOT NULL), 0),
       coalesce(sum(floor(ms * least(greatest(use, 0), 1)::numeric)) FILTER (WHERE use IS NOT NULL), 0),
       coalesce(sum(floor(ms)) FILTER (WHERE power_w IS NOT NULL), 0),
       coalesce(sum(floor(1000 * ms * greatest(power_w, 0)::numeric / capacity_milli))
                FILTER (WHERE power_w IS NOT NULL), 0),
       max(most_use), max(most_memory)
FROM timed GROUP BY 1, 2
ON CONFLICT (claim_id, day) DO UPDATE SET
    samples = m.samples + excluded.samples, known_ms = m.known_ms + excluded.known_ms,
    busy_ms = m.busy_ms + excluded.busy_ms, powered_ms = m.powered_ms + excluded.powered_ms,
    millijoules = m.millijoules + excluded.millijoules, most_use = greatest(m.most_use, excluded.most_use),
    most_memory_bytes = greatest(m.most_memory_bytes, excluded.most_memory_bytes)
"""


def is_behind(now: datetime) -> bool:
    """Whether measurements wait to be added."""
    mark = LedgerMark.objects.first()
    return mark is not None and mark.measured_until < _complete(now)


def _complete(now: datetime) -> datetime:
    """The last whole minute up to which all measurements should have arrived."""
    return (now - LATE).replace(second=0, microsecond=0)


def catch_up(now: datetime, until: float) -> None:
    """Add window after window, until all is added or the monotonic clock is past ``until``."""
    minutes = FIRST
    while (began := time.monotonic()) < until and advance(now, minutes):
        took_s = time.monotonic() - began
        if took_s < QUICK_S:
            minutes = min(2 * minutes, MOST)
        elif took_s > SLOW_S:
            minutes = max(1, minutes // 2)


def advance(now: datetime, minutes: int) -> bool:
    """Add the next ``minutes`` of measurements, as far as they are complete at ``now``; return whether any were.

    The window and the mark are written together under a lock, so a second run at the same time adds nothing twice.
    """
    with transaction.atomic():
        mark = LedgerMark.objects.select_for_update().first()
        if mark is None:
            return False
        until = min(mark.measured_until + minutes * MINUTE, _complete(now))
        if until <= mark.measured_until:
            return False
        with connection.cursor() as cursor:
            cursor.execute(_ADD, {"since": mark.measured_until, "until": until})
            is_news = cursor.rowcount > 0
        if is_news:
            days.mark_due(days.day_of(mark.measured_until), days.day_of(until), now)
        mark.measured_until = until
        mark.save(update_fields=["measured_until"])
    return True
