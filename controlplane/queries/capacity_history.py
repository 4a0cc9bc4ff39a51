"""How much of the cluster was allocated, and how much waited, over the last day or week.

The record keeps every claim with its times, so allocation is exact. The capacity is that of the present devices since
their node joined. Of a stage the record keeps the last wait only, so one that was requeued counts from then on.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

import msgspec
from django.db import connection
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.queries.shared import shared

Range = Literal["day", "week"]


class _Steps(NamedTuple):
    step_s: int
    steps: int


RANGES: Final[dict[str, _Steps]] = {"day": _Steps(600, 144), "week": _Steps(3600, 168)}
# Jobs that were submitted longer before the range are looked at only if they still wait.
LONGEST_WAIT: Final = timedelta(days=7)


class KindHistory(msgspec.Struct, frozen=True):
    """Devices of a kind in each step, of CPUs cores: the mean number that was allocated, and how many were there at its
    end."""

    kind: str
    allocated: list[float]
    capacity: list[float]


class CapacityHistory(msgspec.Struct, frozen=True):
    """A value for each step; ``at`` are their ends. ``waiting`` is the number of stages that waited then."""

    step_s: int
    at: list[datetime]
    kinds: list[KindHistory]
    waiting: list[int]


# A change in a step counts for the rest of it, and whole in those after it.
_ALLOCATED: Final = """
SELECT d.kind, greatest(0, e.slot) AS slot, sum(e.milli), sum(e.milli * e.rest) FROM (
    SELECT device_id, 0 AS slot, milli::float8, 1.0::float8 AS rest FROM jobs_claim
        WHERE opened_at < %(begin)s AND (closed_at IS NULL OR closed_at >= %(begin)s)
    UNION ALL
    SELECT device_id, floor(s)::int, milli, 1 - (s - floor(s)) FROM jobs_claim,
        LATERAL (SELECT extract(epoch FROM opened_at - %(begin)s)::float8 / %(step)s AS s) o
        WHERE opened_at >= %(begin)s AND opened_at < %(end)s
    UNION ALL
    SELECT device_id, floor(s)::int, -milli, 1 - (s - floor(s)) FROM jobs_claim,
        LATERAL (SELECT extract(epoch FROM closed_at - %(begin)s)::float8 / %(step)s AS s) o
        WHERE closed_at >= %(begin)s AND closed_at < %(end)s
) e JOIN fleet_device d ON d.id = e.device_id GROUP BY 1, 2
"""
_CAPACITY: Final = """
SELECT d.kind, greatest(0, floor(extract(epoch FROM n.created_at - %(begin)s) / %(step)s))::int AS slot,
       sum(CASE d.kind WHEN 'cpu' THEN d.capacity_milli / 1000.0 ELSE 1 END)::float8
FROM fleet_device d JOIN fleet_node n ON n.id = d.node_id WHERE d.present GROUP BY 1, 2
"""
# Open stages have an index of their own, and so has the time at which jobs were submitted; with both as one condition
# every stage is compared with every such job.
_WAITED: Final = """
WITH chosen AS (
    SELECT eligible_at, started_at, ended_at FROM jobs_stage
    WHERE state IN ('HELD', 'PENDING') AND eligible_at < %(end)s
    UNION ALL
    SELECT s.eligible_at, s.started_at, s.ended_at FROM jobs_job j JOIN jobs_stage s ON s.job_id = j.id
    WHERE j.submitted_at >= %(oldest)s AND (j.ended_at IS NULL OR j.ended_at > %(begin)s)
        AND s.state NOT IN ('HELD', 'PENDING') AND s.eligible_at < %(end)s
), wait AS (
    SELECT eligible_at AS since, least(%(end)s, CASE
        WHEN started_at >= eligible_at THEN started_at WHEN ended_at >= eligible_at THEN ended_at
        ELSE %(end)s END) AS until
    FROM chosen
)
SELECT slot, sum(n)::bigint FROM (
    SELECT ceil(greatest(0, extract(epoch FROM since - %(begin)s) / %(step)s))::int AS slot, 1 AS n
        FROM wait WHERE until > %(begin)s
    UNION ALL
    SELECT ceil(extract(epoch FROM until - %(begin)s) / %(step)s)::int, -1 FROM wait
        WHERE until > %(begin)s AND until < %(end)s
) e GROUP BY 1
"""


def history(user: User, within: str) -> CapacityHistory:
    """The history of the last day or week; the same for all users, and reused for a while where it is slow."""
    return shared(f"capacity history {within}", user, lambda: capacity_history(within, timezone.now()), CapacityHistory)


def capacity_history(within: str, now: datetime) -> CapacityHistory:
    """Compute the history of a range that ends at the next whole step after ``now``; the last step is not over yet."""
    step_s, count = RANGES[within]
    end = datetime.fromtimestamp((now.timestamp() // step_s + 1) * step_s, tz=now.tzinfo)
    begin = end - timedelta(seconds=step_s * count)
    values = {"begin": begin, "end": now, "step": step_s, "oldest": begin - LONGEST_WAIT}
    whole: dict[str, list[float]] = {}
    partial: dict[str, list[float]] = {}
    capacity: dict[str, list[float]] = {}
    for kind, slot, milli, rest in _rows(_ALLOCATED, values):
        whole.setdefault(kind, [0.0] * count)[slot] += float(milli) / 1000
        partial.setdefault(kind, [0.0] * count)[slot] += float(rest) / 1000
    for kind, slot, size in _rows(_CAPACITY, values):
        capacity.setdefault(kind, [0.0] * count)[min(slot, count - 1)] += size
    waiting = [0] * (count + 1)
    for slot, stages in _rows(_WAITED, values):
        waiting[min(slot, count)] += stages
    return CapacityHistory(
        step_s=step_s,
        at=[begin + timedelta(seconds=step_s * (number + 1)) for number in range(count)],
        kinds=[
            KindHistory(kind, _means(whole.get(kind), partial.get(kind), count), list(accumulate(capacity[kind])))
            for kind in sorted(capacity, key=lambda kind: (kind == "cpu", kind))
        ],
        waiting=list(accumulate(waiting))[1:],
    )


def _means(whole: list[float] | None, partial: list[float] | None, count: int) -> list[float]:
    """The mean of each step, from the changes in it: at its begin it is the sum of those before."""
    if whole is None or partial is None:
        return [0.0] * count
    before = [0.0, *accumulate(whole)]
    return [round(max(0.0, before[number] + partial[number]), 3) for number in range(count)]


def _rows(query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())
