"""Reads the tallies that the database's triggers write, and folds them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from django.db import connection

# Upper bounds in seconds, inclusive, of the buckets that the triggers number; the last bucket has none.
WAIT_BOUNDS: Final = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800)
START_ERROR_BOUNDS: Final = (1, 15, 60, 300, 900, 3600, 14_400, 86_400)
# Fewer rows beside the folded ones are not worth a rewrite.
WORTH_IT: Final = 1_000

_TOTALS = """
SELECT series, pool_id, project_id, word, bucket, sum(count)::bigint, sum(amount)
FROM observability_tally GROUP BY 1, 2, 3, 4, 5
"""
# What another transaction adds meanwhile is not seen, and stays; who folds at the same time waits for the rows, finds
# them gone, and takes only what is left.
_FOLD = """
WITH gone AS (DELETE FROM observability_tally RETURNING series, pool_id, project_id, word, bucket, count, amount)
INSERT INTO observability_tally (series, pool_id, project_id, word, bucket, count, amount)
SELECT series, pool_id, project_id, word, bucket, sum(count), sum(amount) FROM gone GROUP BY 1, 2, 3, 4, 5
"""


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of all tallies of one sort since they are counted."""

    series: str
    pool: uuid.UUID | None
    project: uuid.UUID | None
    word: str
    bucket: int | None
    count: int
    amount: float


def totals() -> list[Total]:
    """Return all sums, as of one moment: no later call returns a smaller count."""
    with connection.cursor() as cursor:
        cursor.execute(_TOTALS)
        return [Total(*row) for row in cursor.fetchall()]


def fold() -> None:
    """Replace many rows by one with their sum, if there are many. Sums stay the same for every concurrent reader."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT count(*) - count(DISTINCT (series, pool_id, project_id, word, bucket)) FROM observability_tally"""
        )
        if cursor.fetchone()[0] >= WORTH_IT:
            cursor.execute(_FOLD)
