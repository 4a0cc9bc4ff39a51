"""How elastic stages scale, read from the checkpoints that their attempts confirmed.

Read seldom and kept in the process: elastic stages are few, and a pace changes little from one minute to the next.
"""

from __future__ import annotations

import uuid

from django.db import connection

from scheduler.core.model.types import SCALING
from scheduler.predict.scaling import Paced, Scalings, scalings

REREAD_S = 20.0
# A stage that nobody knew at the last reading is worth another one, but not at every cycle.
AGAIN_S = 1.0
KEEP_DAYS = 30
# A shorter stretch between the first and the last checkpoint says nothing of the pace.
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


class Scaling:
    """Remembers how elastic stages scale for as long as that is fresh enough."""

    def __init__(self) -> None:
        self._found = Scalings()
        self._families: dict[uuid.UUID, str] = {}
        self._read_at = float("-inf")

    def of(self, stage: uuid.UUID, now: float) -> float:
        """The exponent by which this stage's pace grows with its size."""
        age_s = now - self._read_at
        if age_s > REREAD_S or (stage not in self._families and age_s > AGAIN_S):
            self._read(now)
        return self._found.of(str(stage), self._families.get(stage, ""))

    def expected(self, project: str, job: str, stage: str, now: float) -> float:
        """That of a stage which is not in the record yet."""
        if now - self._read_at > REREAD_S:
            self._read(now)
        return self._found.families.get(f"{project}/{job}/{stage}", SCALING)

    def _read(self, now: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_FAMILIES)
            self._families = dict(cursor.fetchall())
            cursor.execute(_PACES, [LEAST_S, KEEP_DAYS])
            self._found = scalings(Paced(*row) for row in cursor.fetchall())
        self._read_at = now
