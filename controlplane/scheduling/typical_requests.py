"""What is usually asked of each pool, by what was submitted of late: policies keep room for that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.db import connection

from controlplane.fleet.world import parsed
from scheduler.core.matching.workload import most_frequent
from scheduler.core.model.types import Typical

# It changes slowly, and whatever rests on it is worked out anew when it does.
REREAD_S: Final = 600.0
JOBS: Final = 5_000
# So few stages say nothing about those to come.
ENOUGH: Final = 20

_ASKED = """
SELECT o.name, s.request->'alternatives'->0->'asks', count(*)
FROM (SELECT id, pool_id FROM jobs_job ORDER BY submitted_at DESC LIMIT %s) j
     JOIN jobs_stage s ON s.job_id = j.id JOIN pools_pool o ON o.id = j.pool_id
GROUP BY 1, 2
"""

Request = tuple[str, int, int, int]


class Usual:
    """Remembers the typical workload of each pool for as long as it is fresh enough."""

    def __init__(self) -> None:
        self._by_pool: Mapping[str, tuple[Typical, ...]] = {}
        self._read_at = float("-inf")

    def of(self, pool: str, now: float) -> tuple[Typical, ...]:
        """What is usually asked of the pool; nothing where too little was."""
        if now - self._read_at > REREAD_S:
            self._read_at = now
            self._read()
        return self._by_pool.get(pool, ())

    def _read(self) -> None:
        counted: dict[str, Counter[Request]] = defaultdict(Counter)
        with connection.cursor() as cursor:
            cursor.execute(_ASKED, [JOBS])
            for pool, asks, times in cursor.fetchall():
                counted[pool][_request(parsed(asks))] += times
        found = {pool: most_frequent(asked) for pool, asked in counted.items() if asked.total() >= ENOUGH}
        # What is the same stays the same object: tables hang on it.
        self._by_pool = {
            pool: self._by_pool[pool] if self._by_pool.get(pool) == typical else typical
            for pool, typical in found.items()
        }


def _request(asks: Iterable[Mapping[str, Any]]) -> Request:
    """The first way of a stage as the typical workload counts it."""
    asks = list(asks)
    cores = sum(ask["count"] * ask["milli"] for ask in asks if ask["kind"] == "cpu")
    special = next((ask for ask in asks if ask["kind"] != "cpu"), None)
    return (special["kind"], special["count"], special["milli"], cores) if special else ("cpu", 0, 0, cores)
