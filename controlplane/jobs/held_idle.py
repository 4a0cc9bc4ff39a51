"""Accelerators that have been held for long and were hardly used in that time."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta

from django.core.cache import cache
from django.db import connection
from django.utils import timezone
from redis.exceptions import RedisError

# A held device whose mean utilisation is below this share for this time is idle.
IDLE_BELOW = 0.02
IDLE_FOR = timedelta(minutes=15)
LATELY_S = 30


def held_idle(among: Iterable[uuid.UUID] | None = None) -> set[uuid.UUID]:
    """Return the row ids of held idle devices, among all or some. An unmeasured device is not idle: unknown is not
    0. Of a device that works one measurement is read, not all of them."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT c.device_id FROM jobs_claim c JOIN fleet_device d ON d.id = c.device_id AND d.kind <> 'cpu'
               WHERE c.closed_at IS NULL AND c.opened_at < %(since)s
               AND (%(among)s::uuid[] IS NULL OR c.device_id = ANY(%(among)s::uuid[]))
               AND EXISTS (SELECT FROM fleet_device_sample s
                   WHERE s.device_id = c.device_id AND s.at > %(since)s AND s.utilisation IS NOT NULL)
               AND NOT EXISTS (SELECT FROM fleet_device_sample s
                   WHERE s.device_id = c.device_id AND s.at > %(since)s AND s.utilisation >= %(below)s)""",
            {
                "since": timezone.now() - IDLE_FOR,
                "below": IDLE_BELOW,
                "among": None if among is None else list(among),
            },
        )
        return {row[0] for row in cursor.fetchall()}


def held_idle_lately() -> set[uuid.UUID]:
    """Return all of them, as of up to ``LATELY_S`` seconds ago, because reading a quarter of an hour of measurements is
    slow."""
    try:
        known = cache.get("held-idle")
        if known is None:
            known = [str(device) for device in held_idle()]
            cache.set("held-idle", known, LATELY_S)
    except RedisError:
        return held_idle()
    return {uuid.UUID(device) for device in known}
