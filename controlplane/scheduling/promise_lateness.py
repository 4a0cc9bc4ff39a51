"""Measures how late promised starts came. Read from the database, so every process has the same figures at once."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import connection

from controlplane.fleet.world import parsed
from controlplane.scheduling.reread import Reread
from scheduler.core.world.lateness import PromiseClass
from scheduler.predict.lateness import WINDOW, Lateness

# Every promised stage has an announcement too; its index finds the newest.
_BEGUN = """
SELECT s.id::text, o.name, s.first_promise, extract(epoch FROM a.created_at)::float8
FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id AND a.number = 1
     JOIN jobs_job j ON j.id = s.job_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.announced IS NOT NULL AND s.first_promise IS NOT NULL AND s.started_at IS NOT NULL
ORDER BY s.started_at DESC LIMIT %s
"""
_WAITING = """
SELECT s.id::text, o.name, s.first_promise, NULL
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.first_promise IS NOT NULL AND s.state = 'PENDING' AND s.attempt_count = 0
"""


class PromiseLateness(Reread):
    """Caches the lateness of promised starts."""

    every_s = 20.0

    def __init__(self) -> None:
        self._known: Mapping[PromiseClass, float] = {}

    def known(self, now: float) -> Mapping[PromiseClass, float]:
        """Return the seconds of slack to add to a promise, by promise class, where there are enough observations."""
        self.ensure(now)
        return self._known

    def _read(self, now: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_BEGUN, [4 * WINDOW])
            rows = sorted(cursor.fetchall(), key=lambda row: row[3])
            cursor.execute(_WAITING)
            rows += cursor.fetchall()
        found = Lateness()
        for name, pool, stored, began_at in rows:
            promise = parsed(stored)
            found.promised(name, (pool, promise["of"]), promise["start_at"], promise["late_at"])
            if began_at is not None:
                found.began([name], began_at)
        self._known = found.slack(now)
