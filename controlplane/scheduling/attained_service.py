"""The service that stages attained in ended attempts, for least-attained-service policies."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass

from django.db import connection

# Per attempt: how long it held its devices, how many of them (accelerators if it had any, else cores), the model of the
# first, whether it saved its work after it was asked to stop, its time to start (except for the first attempt), and the
# work that its last checkpoint keeps, in seconds on a device of speed 1.
_RECEIVED = """
SELECT a.stage_id, coalesce(h.model, ''), a.ran_s, a.ran_s * coalesce(h.milli, 0) / 1000, a.ended_at, a.saved,
       a.began_in_s, a.kept_s
FROM (SELECT b.id, b.stage_id, extract(epoch FROM b.ended_at)::float8 AS ended_at,
             extract(epoch FROM b.ended_at - coalesce(b.started_at, b.created_at))::float8 AS ran_s,
             CASE WHEN b.stop_at IS NOT NULL THEN
                 EXISTS (SELECT 1 FROM jobs_checkpoint c WHERE c.attempt_id = b.id AND c.at >= b.stop_at) END AS saved,
             CASE WHEN b.number > 1 THEN extract(epoch FROM b.started_at - b.created_at)::float8 END AS began_in_s,
             coalesce((SELECT greatest(0, extract(epoch FROM max(c.at) - b.started_at)::float8) FROM jobs_checkpoint c
                       WHERE c.attempt_id = b.id), 0) * coalesce((b.estimate->>'speed')::float8, 1) AS kept_s
      FROM jobs_attempt b WHERE b.stage_id = ANY(%s) AND b.ended_at IS NOT NULL) a
CROSS JOIN LATERAL (
    SELECT (array_agg(d.model ORDER BY d.kind = 'cpu', d.id))[1] AS model,
           coalesce(sum(c.milli) FILTER (WHERE d.kind <> 'cpu'), sum(c.milli))::float8 AS milli
    FROM jobs_part t JOIN jobs_claim c ON c.part_id = t.id JOIN fleet_device d ON d.id = c.device_id
    WHERE t.attempt_id = a.id) h
ORDER BY a.ended_at
"""


@dataclass(frozen=True, slots=True)
class AttainedService:
    """The service that a stage received in its ended attempts: devices times seconds, seconds by device model, and when
    the last attempt ended.

    ``saves`` tells whether the last attempt that was told to stop saved its work. ``restarts_s`` is how long each
    attempt but the first took from getting its devices to running, oldest first. ``kept_s`` is the work that need not
    be repeated, in seconds on a device of speed 1: each attempt continues from the newest checkpoint.
    """

    device_s: float = 0.0
    by_model_s: tuple[tuple[str, float], ...] = ()
    stopped_at: float | None = None
    saves: bool = False
    restarts_s: tuple[float, ...] = ()
    kept_s: float = 0.0


NOTHING = AttainedService()


def received(stages: Collection[uuid.UUID]) -> dict[uuid.UUID, AttainedService]:
    """Return the attained service by stage; stages without an ended attempt are left out."""
    if not stages:
        return {}
    found: dict[uuid.UUID, AttainedService] = {}
    with connection.cursor() as cursor:
        cursor.execute(_RECEIVED, [list(stages)])
        for stage, model, ran_s, device_s, ended_at, saved, began_in_s, kept_s in cursor.fetchall():
            had = found.get(stage, NOTHING)
            by_model = dict(had.by_model_s)
            by_model[model] = by_model.get(model, 0.0) + ran_s
            found[stage] = AttainedService(
                device_s=had.device_s + device_s,
                by_model_s=tuple(sorted(by_model.items())),
                stopped_at=ended_at,
                saves=had.saves if saved is None else saved,
                restarts_s=had.restarts_s if began_in_s is None else (*had.restarts_s, began_in_s),
                kept_s=had.kept_s + kept_s,
            )
    return found
