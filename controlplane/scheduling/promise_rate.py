"""How many starts came by the end of the range in which people were first told to expect them, in each pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connection

DAYS: Final = 7

# Who still waits and should have begun is missed already; who began for the first time counts by when that was.
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
class Kept:
    """Of ``told`` stages that were told when they would start, ``kept`` did by then."""

    kept: int = 0
    told: int = 0

    @property
    def rate(self) -> float | None:
        """From 0 to 1; ``None`` where nobody was told."""
        return round(self.kept / self.told, 4) if self.told else None


def by_pool() -> dict[str, Kept]:
    """Over the last :data:`DAYS` days, by the pool's name; pools where nobody was told are left out."""
    with connection.cursor() as cursor:
        cursor.execute(_KEPT, [DAYS])
        return {pool: Kept(kept, told) for pool, kept, told in cursor.fetchall()}
