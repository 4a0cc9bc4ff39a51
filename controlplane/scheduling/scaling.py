"""Measures how elastic stages scale, from the progress between the checkpoints of their attempts.

Read again now and then: elastic stages are few, and their pace changes slowly.
"""

from __future__ import annotations

import uuid

from django.db import connection

from controlplane.scheduling.reread import Reread
from scheduler.core.model.types import SCALING
from scheduler.predict.scaling import Paced, Scalings, scalings

# An unknown stage triggers a reread, at most this often.
AGAIN_S = 1.0
KEEP_DAYS = 30
# Minimum span between first and last checkpoint for a usable pace.
LEAST_S = 10.0

_PACES = """
SELECT s.id::text, p.name || '/' || j.name || '/' || s.name,
       (SELECT count(*) FROM jobs_part t WHERE t.attempt_id = a.id), k.steps / k.span_s
FROM jobs_attempt a JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
     JOIN access_project p ON p.id = j.project_id
     JOIN LATERAL (SELECT (max(step) - min(step))::float8 AS steps,
                          extract(epoch FROM max(at) - min(at))::float8 AS span_s
                   FROM jobs_checkpoint WHERE attempt_id = a.id) k ON k.span_s >= %s AND k.steps > 0
WHERE s.request ? 'least_nodes' AND a.created_at > now() - make_interval(days => %s)
"""
_FAMILIES = """
SELECT s.id, p.name || '/' || j.name || '/' || s.name
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
WHERE s.state NOT IN ('COMPLETED', 'FAILED', 'CANCELLED') AND s.request ? 'least_nodes'
"""


class Scaling(Reread):
    """Caches measured scaling exponents."""

    every_s = 20.0

    def __init__(self) -> None:
        self._found = Scalings()
        self._families: dict[uuid.UUID, str] = {}

    def of(self, stage: uuid.UUID, now: float) -> float:
        """Return the exponent by which the pace of a stage grows with its number of nodes."""
        self.ensure(now)
        if stage not in self._families and now - self._read_at > AGAIN_S:
            self._read(now)
            self._read_at = now
        return self._found.of(str(stage), self._families.get(stage, ""))

    def expected(self, project: str, job: str, stage: str, now: float) -> float:
        """Return the exponent expected of a stage that is not submitted yet."""
        self.ensure(now)
        return self._found.families.get(f"{project}/{job}/{stage}", SCALING)

    def _read(self, now: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_FAMILIES)
            self._families = dict(cursor.fetchall())
            cursor.execute(_PACES, [LEAST_S, KEEP_DAYS])
            self._found = scalings(Paced(*row) for row in cursor.fetchall())
