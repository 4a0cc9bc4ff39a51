"""The typical workload of each pool, from recent submits, for policies that avoid fragmentation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.db import connection

from controlplane.fleet.world import parsed
from controlplane.scheduling.reread import Reread
from scheduler.core.matching.workload import most_frequent
from scheduler.core.model.types import Typical

JOBS: Final = 5_000
# Fewer stages than this are no basis.
ENOUGH: Final = 20

_ASKED = """
SELECT o.name, s.request->'alternatives'->0->'asks', count(*)
FROM (SELECT id, pool_id FROM jobs_job ORDER BY submitted_at DESC LIMIT %s) j
     JOIN jobs_stage s ON s.job_id = j.id JOIN pools_pool o ON o.id = j.pool_id
GROUP BY 1, 2
"""

Request = tuple[str, int, int, int]


class TypicalRequests(Reread):
    """Caches the typical workload of each pool. It changes slowly, and invalidates tables of the engine then."""

    every_s = 600.0

    def __init__(self) -> None:
        self._by_pool: Mapping[str, tuple[Typical, ...]] = {}

    def of(self, pool: str, now: float) -> tuple[Typical, ...]:
        """Return the typical requests of a pool; empty if fewer than :data:`ENOUGH` stages were submitted."""
        self.ensure(now)
        return self._by_pool.get(pool, ())

    def _read(self, now: float) -> None:
        counted: dict[str, Counter[Request]] = defaultdict(Counter)
        with connection.cursor() as cursor:
            cursor.execute(_ASKED, [JOBS])
            for pool, asks, times in cursor.fetchall():
                counted[pool][_request(parsed(asks))] += times
        found = {pool: most_frequent(asked) for pool, asked in counted.items() if asked.total() >= ENOUGH}
        # Keep equal values identical: the engine caches tables by identity.
        self._by_pool = {
            pool: self._by_pool[pool] if self._by_pool.get(pool) == typical else typical
            for pool, typical in found.items()
        }


def _request(asks: Iterable[Mapping[str, Any]]) -> Request:
    """Reduce the first alternative of a stage to the form that the typical workload counts."""
    asks = list(asks)
    cores = sum(ask["count"] * ask["milli"] for ask in asks if ask["kind"] == "cpu")
    special = next((ask for ask in asks if ask["kind"] != "cpu"), None)
    return (special["kind"], special["count"], special["milli"], cores) if special else ("cpu", 0, 0, cores)
