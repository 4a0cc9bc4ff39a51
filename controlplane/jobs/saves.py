"""Computes how often an attempt should save a checkpoint, from measured saves and interruptions, with the reason."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.db import connection

from controlplane.clauses import Told, clause, told
from controlplane.jobs.models import Job, Stage
from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.retry import GOES_ON
from scheduler.predict import saving

REREAD_S: Final = 600
# The numbers of newest attempts and saves that are evaluated, within this many days.
DAYS: Final = 30
ATTEMPTS: Final = 5_000
SAVES: Final = 5_000
# How many of a stage's newest saves are evaluated; older ones may have been of a smaller model.
OWN: Final = 20
NODE_FAULTS: Final = (Cause.NODE_FAIL, Cause.NODE_REBOOT, Cause.LEASE_EXPIRED, Cause.SUPERVISOR_LOST)

# By pool: the interruptions of its attempts, and the node and device time that these held.
_INTERRUPTED = """
SELECT j.pool_id, count(*) FILTER (WHERE a.cause = ANY(%(node_faults)s)), sum(a.ran_s * h.nodes)::float8,
       count(*) FILTER (WHERE a.cause = 'DEVICE_ERROR'), sum(a.ran_s * h.devices)::float8,
       count(*) FILTER (WHERE a.cause = ANY(%(stops)s) AND NOT EXISTS (
           SELECT 1 FROM jobs_checkpoint k WHERE k.attempt_id = a.id AND k.at >= a.stop_at)), sum(a.ran_s)::float8
FROM ((SELECT id, stage_id, cause, stop_at, extract(epoch FROM ended_at - started_at)::float8 AS ran_s
       FROM jobs_attempt WHERE started_at IS NOT NULL AND ended_at > %(at)s - make_interval(days => %(days)s)
       ORDER BY ended_at DESC LIMIT %(most)s)
      UNION ALL
      (SELECT id, stage_id, '', NULL, greatest(0, extract(epoch FROM %(at)s - started_at)::float8)
       FROM jobs_attempt WHERE started_at IS NOT NULL AND ended_at IS NULL LIMIT %(most)s)) a
JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
CROSS JOIN LATERAL (
    SELECT count(DISTINCT t.id) AS nodes, count(DISTINCT c.device_id) FILTER (WHERE d.kind <> 'cpu') AS devices
    FROM jobs_part t LEFT JOIN jobs_claim c ON c.part_id = t.id LEFT JOIN fleet_device d ON d.id = c.device_id
    WHERE t.attempt_id = a.id) h
GROUP BY j.pool_id
"""
# By project, kind and name of a stage: the median duration of the newest saves.
_ALIKE = """
SELECT j.project_id, s.kind, s.name, percentile_cont(0.5) WITHIN GROUP (ORDER BY k.took_s)
FROM (SELECT stage_id, took_s FROM jobs_checkpoint WHERE took_s IS NOT NULL ORDER BY at DESC LIMIT %s) k
JOIN jobs_stage s ON s.id = k.stage_id JOIN jobs_job j ON j.id = s.job_id
GROUP BY 1, 2, 3
"""
_OWN = """
SELECT s.id, percentile_cont(0.5) WITHIN GROUP (ORDER BY k.took_s)
FROM unnest(%s::uuid[]) s(id) CROSS JOIN LATERAL (
    SELECT took_s FROM jobs_checkpoint WHERE stage_id = s.id AND took_s IS NOT NULL ORDER BY at DESC LIMIT %s) k
GROUP BY s.id
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Interruptions by pool, and the duration of saves in seconds by project, kind and name of the stage."""

    interruptions: Mapping[Any, saving.Interruptions]
    alike_s: Mapping[tuple[Any, str, str], float]


@lru_cache(maxsize=1)
def measured(period: int) -> Measured:
    """Return what was measured as of the end of the ``period``-th interval of ``REREAD_S`` seconds since the epoch."""
    asked: dict[str, Any] = {
        "at": datetime.fromtimestamp((period + 1) * REREAD_S).astimezone(),
        "days": DAYS,
        "most": ATTEMPTS,
        "node_faults": list(NODE_FAULTS),
        "stops": sorted(GOES_ON),
    }
    with connection.cursor() as cursor:
        cursor.execute(_INTERRUPTED, asked)
        interruptions = {pool: saving.Interruptions(*seen) for pool, *seen in cursor.fetchall()}
        cursor.execute(_ALIKE, [SAVES])
        return Measured(interruptions, {(project, kind, name): took for project, kind, name, took in cursor})


def own_s(stages: Collection[uuid.UUID]) -> dict[uuid.UUID, float]:
    """Return the median duration of the newest saves of each stage in seconds; stages without any are left out."""
    if not stages:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_OWN, [list(stages), OWN])
        return dict(cursor.fetchall())


def cost_s(job: Job, stage: Stage, own: Mapping[uuid.UUID, float], at: datetime) -> tuple[float, str]:
    """Return the seconds that a save of a stage takes, and the code of the clause that tells how that is known."""
    if stage.id in own:
        return own[stage.id], "SaveMeasured"
    found = measured(int(at.timestamp()) // REREAD_S)
    alike_s = found.alike_s.get((job.project_id, stage.kind, stage.name))
    return (saving.SAVE_S, "SaveAssumed") if alike_s is None else (alike_s, "SaveAlike")


def interval(
    job: Job, stage: Stage, nodes: int, devices: int, own: Mapping[uuid.UUID, float], at: datetime
) -> tuple[float, Told]:
    """Return the seconds between two saves for an attempt on so many nodes and accelerators, and the reason.

    ``own`` is the duration of the stage's saves (see :func:`own_s`). An interval in the job file takes precedence.
    """
    asked_s = stage.request.get("checkpoint_every_s")
    if asked_s:
        return float(asked_s), told(clause("SaveAsAsked"))
    found = measured(int(at.timestamp()) // REREAD_S)
    save_s, code = cost_s(job, stage, own, at)
    mean_s = saving.between_s(found.interruptions.get(job.pool_id, saving.NONE_SEEN), nodes, devices)
    every_s = round(saving.every_s(save_s, mean_s))
    return every_s, told(clause(code, save_s=round(save_s, 1)), clause("InterruptedEvery", between_s=round(mean_s)))
