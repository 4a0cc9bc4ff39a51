"""Finds stages that may not use their pool: it is restricted, and names neither their project nor a group of their
user."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

from django.db import connection

# Of the job ``j`` in the pool ``o``.
IS_REFUSED: Final = """(
    o.restricted
    AND NOT EXISTS (SELECT 1 FROM pools_pool_allowed_projects a
                    WHERE a.pool_id = j.pool_id AND a.project_id = j.project_id)
    AND NOT EXISTS (SELECT 1 FROM pools_pool_allowed_groups a JOIN access_user_groups m ON m.group_id = a.group_id
                    WHERE a.pool_id = j.pool_id AND m.user_id = j.user_id)
)"""
_AMONG: Final = f"""
SELECT s.id::text FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.id = ANY(%s) AND {IS_REFUSED}
"""


def refused(stages: Iterable[str]) -> set[str]:
    """Return those of the stages that may not use their pool now."""
    asked = [uuid.UUID(stage) for stage in stages]
    if not asked:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(_AMONG, [asked])
        return {stage for (stage,) in cursor.fetchall()}
