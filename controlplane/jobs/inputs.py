"""Inputs of stages with the digests known so far: outputs of earlier stages, and named sources."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from django.db import connection

from agents.protocol import Input
from controlplane.fleet.world import parsed

_STAGES = """
SELECT s.id, s.request->'inputs', o.storage_path, j.number, (
    SELECT coalesce(json_object_agg(u.key, u.value), '{}') FROM (
        SELECT DISTINCT ON (t.name, k.name) t.name || '/' || k.name AS key, k.digest AS value
        FROM jobs_stage t JOIN jobs_output k ON k.stage_id = t.id
        WHERE t.job_id = s.job_id ORDER BY t.name, k.name, k.at DESC) u)
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.id = ANY(%s) AND s.request ? 'inputs'
"""


def resolved(stage_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[Input]]:
    """Return the known inputs of these stages; outputs of stages that have not completed are left out."""
    if not stage_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_STAGES, [list(stage_ids)])
        rows = cursor.fetchall()
    found: dict[uuid.UUID, list[Input]] = {}
    for stage, inputs, storage, number, outputs in rows:
        known = parsed(outputs)
        each = (_input(one, storage, number, known) for one in parsed(inputs))
        found[stage] = [one for one in each if one is not None]
    return found


def _input(one: dict[str, Any], storage: str, number: int, outputs: dict[str, str]) -> Input | None:
    shard = bool(one.get("shard"))
    if "job" in one:
        return Input(one["name"], one["digest"], path=one.get("at", ""), shard=shard)
    if "from" not in one:
        return Input(one["name"], one["digest"], kind=one["kind"], source=one["source"], shard=shard)
    digest = outputs.get(f"{one['from']}/{one['output']}", "")
    if not digest:
        return None
    path = f"{storage}/{number}/outputs/{one['from']}/{one['output']}" if storage else ""
    return Input(one["name"], digest, path=path, shard=shard)
