"""Compares announced starts with actual ones, to calibrate the ranges of later announcements."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from django.db import connection

from controlplane.fleet.world import parsed
from controlplane.scheduling.reread import Reread
from scheduler.core.model.types import Turnout
from scheduler.core.world.lateness import PromiseClass
from scheduler.predict.starts import WINDOW, Announced, turnouts

_BEGUN = """
SELECT s.announced, extract(epoch FROM a.created_at)::float8
FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id AND a.number = 1
WHERE s.announced IS NOT NULL AND s.started_at IS NOT NULL
ORDER BY s.started_at DESC LIMIT %s
"""
_WAITING = """
SELECT s.announced FROM jobs_stage s
WHERE s.announced IS NOT NULL AND s.state = 'PENDING' AND s.attempt_count = 0
"""


class AnnouncedStarts(Reread):
    """Caches the outcome of announced starts."""

    every_s = 20.0

    def __init__(self) -> None:
        self._known: Mapping[PromiseClass, Turnout] = {}

    def known(self, now: float) -> Mapping[PromiseClass, Turnout]:
        """Return the outcomes by pool, and by pool and horizon."""
        self.ensure(now)
        return self._known

    def _read(self, now: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_BEGUN, [4 * WINDOW])
            begun = [_announced(stored, began_at) for stored, began_at in reversed(cursor.fetchall())]
            cursor.execute(_WAITING)
            waiting = [_announced(stored, None) for (stored,) in cursor.fetchall()]
        self._known = turnouts([*begun, *waiting], now)


def _announced(stored: object, began_at: float | None) -> Announced:
    return msgspec.convert({**parsed(stored), "began_at": began_at}, Announced)
