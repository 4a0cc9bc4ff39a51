"""Use of devices and processes by a job over time, downsampled for charts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from django.db import connection
from django.utils import timezone

from controlplane.jobs.models import Claim, Job

MOST_POINTS = 300
MOST_SERIES = 128
LONGEST_S = 14 * 86_400


class DeviceSeries(msgspec.Struct, frozen=True):
    """Means of one device over each step; null where nothing was measured. ``at`` of the answer gives the times."""

    uuid: str
    node: str
    kind: str
    model: str
    index: int
    memory_bytes: int
    simulated: bool
    utilisation: list[float | None]
    memory_used_bytes: list[float | None]
    power_w: list[float | None]
    temperature_c: list[float | None]


class PartSeries(msgspec.Struct, frozen=True):
    """Means of the processes of one rank of an attempt over each step: cores and resident bytes."""

    stage: str
    attempt: int
    rank: int
    node: str
    cpu: list[float | None]
    rss_bytes: list[float | None]


class JobSeries(msgspec.Struct, frozen=True):
    """What a job used. All series have one value per time in ``at``. ``truncated`` tells that there are more series."""

    from_at: datetime
    to_at: datetime
    step_s: float
    at: list[datetime]
    devices: list[DeviceSeries]
    parts: list[PartSeries]
    truncated: bool


_DEVICES = """
SELECT s.device_id, floor(extract(epoch FROM s.at - %(begin)s) / %(step)s)::int AS slot, avg(s.utilisation),
       avg(s.memory_used_bytes)::float8, avg(s.power_w), avg(s.temperature_c)
FROM jobs_claim c JOIN jobs_part p ON p.id = c.part_id JOIN jobs_attempt a ON a.id = p.attempt_id
     JOIN jobs_stage g ON g.id = a.stage_id
     JOIN fleet_device_sample s ON s.device_id = c.device_id AND s.at >= greatest(c.opened_at, %(begin)s)
         AND s.at < least(coalesce(c.closed_at, 'infinity'), %(end)s)
WHERE g.job_id = %(job)s AND c.device_id = ANY(%(ids)s) GROUP BY 1, 2
"""
_DEVICE = """
SELECT device_id, floor(extract(epoch FROM at - %(begin)s) / %(step)s)::int AS slot, avg(utilisation),
       avg(memory_used_bytes)::float8, avg(power_w), avg(temperature_c)
FROM fleet_device_sample WHERE device_id = ANY(%(ids)s) AND at >= %(begin)s AND at < %(end)s GROUP BY 1, 2
"""
_PARTS = """
SELECT part_id, floor(extract(epoch FROM at - %(begin)s) / %(step)s)::int AS slot, avg(cpu), avg(rss_bytes)::float8
FROM fleet_part_sample WHERE part_id = ANY(%(ids)s) AND at >= %(begin)s AND at < %(end)s GROUP BY 1, 2
"""


class Span(NamedTuple):
    """A span in ``steps`` steps."""

    begin: datetime
    end: datetime
    step_s: float
    steps: int

    @property
    def at(self) -> list[datetime]:
        """When each step begins."""
        return [self.begin + timedelta(seconds=i * self.step_s) for i in range(self.steps)]


def span(since_s: float, last: datetime | None = None) -> Span:
    """The span of so many seconds that ends now, or at ``last``."""
    step_s = max(1.0, float(-(-since_s // MOST_POINTS)))
    last = last or timezone.now()
    # Steps begin at whole multiples, so that a refreshed chart moves by whole steps.
    end = datetime.fromtimestamp((last.timestamp() // step_s + 1) * step_s, tz=last.tzinfo)
    count = min(MOST_POINTS, round(since_s / step_s) or 1)
    return Span(end - timedelta(seconds=count * step_s), end, step_s, count)


def of_device(device: uuid.UUID, over: Span) -> list[list[float | None]]:
    """Utilisation, memory, power and temperature of a device in each step, whoever held it."""
    return of_devices([device], over).get(device) or [[None] * over.steps for _ in range(4)]


def of_devices(devices: Sequence[uuid.UUID], over: Span) -> dict[uuid.UUID, list[list[float | None]]]:
    """The same of each of these devices that was measured."""
    values = {"begin": over.begin, "end": over.end, "step": over.step_s, "ids": list(devices)}
    return _slots(_DEVICE, values, 4, over.steps)


def series(job: Job, since_s: float) -> JobSeries:
    """The series of this job over the span that ends now, or where the job ended."""
    over = span(since_s, job.ended_at and job.ended_at + timedelta(seconds=1))
    begin, end, step_s, count = over
    held = list(
        Claim.objects.filter(part__attempt__stage__job=job)
        .select_related("device__node", "part__node", "part__attempt__stage")
        .order_by("-part__attempt__created_at", "part__rank", "device__kind", "device__index")[: 4 * MOST_SERIES]
    )
    devices = {claim.device_id: claim.device for claim in held}
    parts = {claim.part_id: claim.part for claim in held}
    chosen_devices, chosen_parts = list(devices)[:MOST_SERIES], list(parts)[:MOST_SERIES]
    bounds: dict[str, Any] = {"begin": begin, "end": end, "step": step_s, "job": job.id}
    by_device = _slots(_DEVICES, {**bounds, "ids": chosen_devices}, 4, count)
    by_part = _slots(_PARTS, {**bounds, "ids": chosen_parts}, 2, count)
    return JobSeries(
        from_at=begin,
        to_at=end,
        step_s=step_s,
        at=over.at,
        devices=[
            DeviceSeries(d.uuid, d.node.name, d.kind, d.model, d.index, d.memory_bytes, d.simulated, *by_device[d.id])
            for d in (devices[each] for each in chosen_devices)
            if d.id in by_device
        ],
        parts=[
            PartSeries(p.attempt.stage.name, p.attempt.number, p.rank, p.node.name, *by_part[p.id])
            for p in (parts[each] for each in chosen_parts)
            if p.id in by_part
        ],
        truncated=len(devices) > MOST_SERIES or len(parts) > MOST_SERIES,
    )


def _slots(sql: str, values: dict[str, Any], width: int, count: int) -> dict[uuid.UUID, list[list[float | None]]]:
    """Return per id ``width`` lists of ``count`` values."""
    found: dict[uuid.UUID, list[list[float | None]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        for each, slot, *means in cursor.fetchall():
            lists = found.setdefault(each, [[None] * count for _ in range(width)])
            if 0 <= slot < count:
                for one, mean in zip(lists, means, strict=True):
                    one[slot] = None if mean is None else round(mean, 4)
    return found
