"""The receipt of a job: its device time by stage, its energy and cost, and one line of advice."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec
from django.conf import settings
from django.db import connection
from django.utils import timezone

from controlplane.clauses import Clause, clause, told
from controlplane.fleet.world import parsed
from controlplane.jobs.models import Job
from controlplane.queries.usage import co2_g, in_currency
from controlplane.usage import advice, ledger
from controlplane.usage.models import LedgerMark
from controlplane.usage.prices import TARIFF
from scheduler.core.model.lifecycle import State
from scheduler.core.resources import charges


class ReceiptLine(msgspec.Struct, frozen=True):
    """The device time of one stage on devices of one kind and model, in seconds of a device, of CPU of a core; fields
    are as in usage."""

    stage: str
    kind: str
    model: str
    attempts: int
    allocated_device_s: float
    busy_device_s: float
    idle_device_s: float
    unknown_device_s: float
    lost_preempted_device_s: float
    lost_failed_device_s: float
    energy_j: float | None
    powered_device_s: float
    cost: float | None
    unpriced_device_s: float


class Receipt(msgspec.Struct, frozen=True):
    """What a job held and used, up to ``as_of`` while it runs. Measurements are counted up to ``measured_until``.

    ``wait_s`` is from its submit to its first start, or until now. ``energy_j`` and ``cost`` are null if nothing of it
    is known. ``advice`` is one line, ``advice_said`` the same in clauses; it is checked against all measurements of the
    job.
    """

    job: int
    name: str
    project: str
    user: str
    state: str
    as_of: datetime
    measured_until: datetime | None
    wait_s: float
    energy_j: float | None
    co2_g: float | None
    currency: str
    cost: float | None
    is_priced_whole: bool
    advice: str
    advice_said: list[Clause]
    lines: list[ReceiptLine]


# Each claim by day, since prices are those of the day.
_LINES: Final = """
WITH held AS (
    SELECT c.id, c.milli, s.index, s.name AS stage, d.kind, d.model, a.id AS attempt, a.cause,
           c.opened_at AS first, greatest(least(c.closed_at, %(now)s), c.opened_at) AS last, k.at AS saved_at
    FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id JOIN jobs_part p ON p.attempt_id = a.id
         JOIN jobs_claim c ON c.part_id = p.id JOIN fleet_device d ON d.id = c.device_id
         LEFT JOIN LATERAL (SELECT max(at) AS at FROM jobs_checkpoint WHERE attempt_id = a.id) k
             ON a.cause = ANY(%(lost)s)
    WHERE s.job_id = %(job)s
), daily AS (
    SELECT h.*, g::date AS day,
           h.milli * greatest(0, extract(epoch FROM least(h.last, (g + interval '1 day') AT TIME ZONE 'UTC')
                                         - greatest(h.first, g AT TIME ZONE 'UTC'))) AS ms,
           h.milli * greatest(0, extract(epoch FROM least(h.last, (g + interval '1 day') AT TIME ZONE 'UTC')
                                         - greatest(h.first, h.saved_at, g AT TIME ZONE 'UTC'))) AS lost_ms
    FROM held h CROSS JOIN LATERAL generate_series(date_trunc('day', h.first AT TIME ZONE 'UTC'),
                                                   h.last AT TIME ZONE 'UTC', interval '1 day') g
), tariff AS ({tariff})
SELECT x.stage, x.kind, x.model, count(DISTINCT x.attempt), floor(sum(x.ms)),
       sum(least(coalesce(m.known_ms, 0), floor(x.ms))),
       sum(least(coalesce(m.busy_ms, 0), m.known_ms, floor(x.ms))),
       coalesce(floor(sum(x.lost_ms) FILTER (WHERE x.cause = ANY(%(evicted)s))), 0),
       coalesce(floor(sum(x.lost_ms) FILTER (WHERE x.cause = ANY(%(failed)s))), 0),
       sum(least(coalesce(m.powered_ms, 0), floor(x.ms))), coalesce(sum(m.millijoules), 0),
       sum(x.ms * t.per_device_hour) / 3600000,
       coalesce(sum(x.ms) FILTER (WHERE t.per_device_hour IS NULL), 0)
FROM daily x LEFT JOIN usage_claimmeter m ON m.claim_id = x.id AND m.day = x.day
     LEFT JOIN tariff t ON (t.day, t.kind, t.model) = (x.day, x.kind, x.model)
GROUP BY x.index, x.stage, x.kind, x.model ORDER BY x.index, x.kind = 'cpu', x.kind, x.model
"""

# What each part held of a kind of device, and what was measured of it; memory also as the agent told it at the end.
_HELD: Final = """
SELECT s.name, d.kind, min(d.model), min(d.features::text), p.id, sum(c.milli)::float8 / 1000,
       (CASE WHEN d.kind = 'cpu' THEN sum(c.memory_bytes) ELSE min(d.memory_bytes) END)::bigint,
       max(extract(epoch FROM c.closed_at - c.opened_at))::float8,
       bool_and(c.milli >= d.capacity_milli AND c.partition = ''), min(coalesce(m.samples, 0)),
       coalesce(sum(m.known_ms), 0)::float8
           / greatest(1, sum(c.milli * extract(epoch FROM c.closed_at - c.opened_at)))::float8,
       max(m.most_use), bool_or(m.most_use IS NULL),
       greatest(max(m.most_memory_bytes), max(CASE WHEN d.kind = 'cpu' THEN (p.exit->>'peak_memory_bytes')::bigint
                                              ELSE (p.exit->'device_peak_bytes'->>d.kind)::bigint END)),
       bool_or(m.most_memory_bytes IS NULL)
FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id JOIN jobs_part p ON p.attempt_id = a.id
     JOIN jobs_claim c ON c.part_id = p.id JOIN fleet_device d ON d.id = c.device_id
     LEFT JOIN LATERAL (
         SELECT sum(samples) AS samples, sum(known_ms) AS known_ms, max(most_use) AS most_use,
                max(most_memory_bytes) AS most_memory_bytes
         FROM usage_claimmeter WHERE claim_id = c.id) m ON true
WHERE s.job_id = %s AND c.closed_at IS NOT NULL GROUP BY s.index, s.name, d.kind, p.id ORDER BY s.index, d.kind, p.id
"""


def receipt(job: Job) -> Receipt:
    """The receipt of this job, whose project and user must be loaded."""
    now = timezone.now()
    lines = _lines(job, now)
    said = advised(job)
    drawn = [line.energy_j for line in lines if line.energy_j is not None]
    costs = [line.cost for line in lines if line.cost is not None]
    energy_j = sum(drawn) if drawn else None
    mark = LedgerMark.objects.first()
    return Receipt(
        job=job.number,
        name=job.name,
        project=job.project.name,
        user=job.user.get_username(),
        state=job.state,
        as_of=now,
        measured_until=mark.measured_until if mark else None,
        wait_s=round(((job.started_at or job.ended_at or now) - job.submitted_at).total_seconds(), 3),
        energy_j=energy_j,
        co2_g=co2_g(energy_j),
        currency=settings.CURRENCY,
        cost=round(sum(costs), 4) if costs else None,
        is_priced_whole=all(line.unpriced_device_s == 0 for line in lines),
        advice=told(said).text,
        advice_said=[said],
        lines=lines,
    )


def _lines(job: Job, now: datetime) -> list[ReceiptLine]:
    values: dict[str, Any] = {"job": job.id, "now": now, "lost": sorted(ledger.EVICTED | ledger.FAILED)}
    values |= {"evicted": sorted(ledger.EVICTED), "failed": sorted(ledger.FAILED)}
    with connection.cursor() as cursor:
        cursor.execute(_LINES.format(tariff=TARIFF.format(days="SELECT DISTINCT day, kind, model FROM daily")), values)
        rows = cursor.fetchall()
    return [_line(*row) for row in rows]


def _line(stage: str, kind: str, model: str, attempts: int, *counted: Any) -> ReceiptLine:
    allocated, known, busy, preempted, failed, powered, millijoules, cost, unpriced = counted
    return ReceiptLine(
        stage=stage,
        kind=kind,
        model=model,
        attempts=attempts,
        allocated_device_s=float(allocated) / 1000,
        busy_device_s=float(busy) / 1000,
        idle_device_s=float(known - busy) / 1000,
        unknown_device_s=float(allocated - known) / 1000,
        lost_preempted_device_s=float(preempted) / 1000,
        lost_failed_device_s=float(failed) / 1000,
        energy_j=float(millijoules) / 1000 if powered else None,
        powered_device_s=float(powered) / 1000,
        cost=in_currency(cost),
        unpriced_device_s=float(unpriced) / 1000,
    )


def advised(job: Job) -> Clause:
    """The one line of advice for this job."""
    if job.ended_at is None:
        return clause("StillOpen")
    if job.state != State.COMPLETED:
        return clause("DidNotComplete")
    mark = LedgerMark.objects.first()
    if mark is None or mark.measured_until < job.ended_at:
        return clause("MeasuredSoon")
    return advice.advise(held(job.id))


def held(job: uuid.UUID) -> list[advice.StageHolding]:
    """What each stage of a job held of each kind of device, and the highest measurements of all its parts."""
    with connection.cursor() as cursor:
        cursor.execute(_HELD, [job])
        parts: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for stage, kind, *rest in cursor.fetchall():
            parts[stage, kind].append(rest)
    return [_held(stage, kind, rows) for (stage, kind), rows in parts.items()]


def _held(stage: str, kind: str, rows: list[Any]) -> advice.StageHolding:
    models, features, _parts, counts, memories, spans, wholes, samples, known, uses, unused, peaks, blind = zip(
        *rows, strict=True
    )
    total_s = sum(spans)
    return advice.StageHolding(
        stage=stage,
        kind=kind,
        model=", ".join(sorted(set(models))),
        count=min(counts),
        memory_bytes=min(memories),
        seconds=total_s,
        charge=charges.of(kind, parsed(features[0])),
        is_whole=all(wholes),
        fewest_samples=int(min(samples)),
        share_known=sum(share * span for share, span in zip(known, spans, strict=True)) / max(total_s, 1e-9),
        most_use=None if any(unused) else _most(uses),
        most_memory_bytes=None if any(blind) else int(_most(peaks) or 0),
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
