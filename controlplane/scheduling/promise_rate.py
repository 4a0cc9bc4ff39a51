"""Counts, by pool, how many stages started by the end of the range that was first announced to their owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connection

DAYS: Final = 7

# Stages that still wait after their range count as missed; others count by their first start.
_KEPT = """
SELECT o.name, count(*) FILTER (WHERE t.began_at <= t.high_at + 1), count(*)
FROM (SELECT s.job_id, (s.announced->>'high_at')::float8 AS high_at,
             extract(epoch FROM a.created_at)::float8 AS began_at
      FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id AND a.number = 1
      WHERE s.announced IS NOT NULL AND (s.announced->>'shown')::bool
            AND s.started_at >= now() - make_interval(days => %s)
      UNION ALL
      SELECT s.job_id, (s.announced->>'high_at')::float8, NULL
      FROM jobs_stage s
      WHERE s.announced IS NOT NULL AND (s.announced->>'shown')::bool AND s.state = 'PENDING' AND s.attempt_count = 0
            AND (s.announced->>'high_at')::float8 + 1 < extract(epoch FROM now())) t
     JOIN jobs_job j ON j.id = t.job_id JOIN pools_pool o ON o.id = j.pool_id
GROUP BY o.name
"""


@dataclass(frozen=True, slots=True)
class PromiseRate:
    """``told`` stages had an announced start; ``kept`` of them started in time."""

    kept: int = 0
    told: int = 0

    @property
    def rate(self) -> float | None:
        """The share that started in time, 0 to 1; ``None`` without any announcement."""
        return round(self.kept / self.told, 4) if self.told else None


def by_pool() -> dict[str, PromiseRate]:
    """Return the rate of the last :data:`DAYS` days by pool name; pools without announcements are left out."""
    with connection.cursor() as cursor:
        cursor.execute(_KEPT, [DAYS])
        return {pool: PromiseRate(kept, told) for pool, kept, told in cursor.fetchall()}
