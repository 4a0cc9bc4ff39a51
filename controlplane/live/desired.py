"""The Desired message for one node: everything that is wanted on it, read from the rows."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Prefetch

from agents.protocol import Desired, DeviceClaim, PartSpec, Phase, Timers, Wanted
from controlplane.fleet.models import Node
from controlplane.jobs.models import Checkpoint, Claim, Part

TIMERS = Timers(**settings.LINK_TIMERS)


@cache
def lineage() -> str:
    """Which database this is. It differs after a restore into a new database cluster."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT system_identifier::text FROM pg_control_system()")
        return str(cursor.fetchone()[0])


def compose(node_id: uuid.UUID, known: Mapping[str, int], **answer: Any) -> Desired:
    """All that is wanted on a node as of now.

    ``known`` maps the parts that the agent holds to their phase: of those that it has journalled already the order is
    repeated without its spec. ``answer`` are the fields that reply to a report (accepted, refused, unknown, forget).
    """
    generation = Node.objects.values_list("generation", flat=True).get(id=node_id)
    parts = list(
        Part.objects.filter(node_id=node_id, forgotten=False, ended_at=None).select_related("attempt").order_by("id")
    )
    fresh = [part.id for part in parts if not part.attempt.stop_why and known.get(str(part.id), 0) < Phase.ACKED]
    specs = _specs(fresh) if fresh else {}
    graces = _graces([part for part in parts if part.attempt.stop_why])
    wanted = [
        Wanted(
            part=str(part.id),
            attempt=str(part.attempt_id),
            epoch=part.epoch,
            do="stop",
            why=part.attempt.stop_why,
            grace_s=graces[part.id],
        )
        if part.attempt.stop_why
        else Wanted(
            part=str(part.id), attempt=str(part.attempt_id), epoch=part.epoch, do="run", spec=specs.get(part.id)
        )
        for part in parts
    ]
    return Desired(
        generation=generation,
        wanted=[*wanted, *answer.pop("leftovers", [])],
        timers=TIMERS,
        cluster=settings.CLUSTER_NAME,
        lineage=lineage(),
        **answer,
    )


def _graces(parts: list[Part]) -> dict[uuid.UUID, float]:
    if not parts:
        return {}
    rows = Part.objects.filter(id__in=[part.id for part in parts])
    return {i: float(request["grace_s"]) for i, request in rows.values_list("id", "attempt__stage__request")}


# Rows of jobs and stages carry much that an agent never sees.
_COLUMNS = (
    "rank",
    "epoch",
    "node__name",
    "node__address",
    "attempt__number",
    "attempt__alternative",
    "attempt__stage__name",
    "attempt__stage__kind",
    "attempt__stage__request",
    "attempt__stage__job__number",
    "attempt__stage__job__name",
    "attempt__stage__job__bundle",
    "attempt__stage__job__pool__storage_path",
    "attempt__stage__job__project__name",
)
_CLAIM_COLUMNS = (
    "part_id",
    "milli",
    "memory_bytes",
    "device__uuid",
    "device__kind",
    "device__vendor",
    "device__model",
    "device__index",
    "device__simulated",
)


def _specs(part_ids: list[uuid.UUID]) -> dict[uuid.UUID, PartSpec]:
    parts = list(
        Part.objects.filter(id__in=part_ids)
        .select_related("attempt__stage__job__pool", "attempt__stage__job__project", "node")
        .only(*_COLUMNS)
        .prefetch_related(Prefetch("claims", Claim.objects.select_related("device").only(*_CLAIM_COLUMNS)))
    )
    gangs: dict[uuid.UUID, list[Part]] = {}
    several = [part.attempt_id for part in parts if part.attempt.stage.request["nodes"] > 1]
    for peer in Part.objects.filter(attempt__in=several).select_related("node").order_by("rank"):
        gangs.setdefault(peer.attempt_id, []).append(peer)
    resumable = [part.attempt.stage_id for part in parts if part.attempt.number > 1]
    # In the order of their steps: the last one of a stage stays.
    checkpoints = Checkpoint.objects.filter(stage__in=resumable).order_by("step", "at") if resumable else ()
    newest = {checkpoint.stage_id: checkpoint.path for checkpoint in checkpoints}
    return {part.id: _spec(part, gangs.get(part.attempt_id, [part]), newest) for part in parts}


def _spec(part: Part, gang: list[Part], newest: Mapping[uuid.UUID, str]) -> PartSpec:
    attempt, stage = part.attempt, part.attempt.stage
    job, request = stage.job, stage.request
    alternative = request["alternatives"][attempt.alternative]
    storage = PurePosixPath(job.pool.storage_path) / str(job.number) if job.pool.storage_path else None
    return PartSpec(
        job=job.number,
        job_name=job.name,
        stage=stage.name,
        stage_kind=stage.kind,
        project=job.project.name,
        attempt_number=attempt.number,
        argv=alternative["argv"],
        rank=part.rank,
        nodes=[peer.node.name for peer in gang],
        env=alternative.get("env") or {},
        bundle=job.bundle or None,
        devices=[
            DeviceClaim(
                uuid=claim.device.uuid,
                kind=claim.device.kind,
                vendor=claim.device.vendor,
                model=claim.device.model,
                index=claim.device.index,
                milli=claim.milli,
                memory_bytes=claim.memory_bytes,
                simulated=claim.device.simulated,
            )
            for claim in part.claims.all()
        ],
        cpus_milli=request["cpus_milli"],
        memory_bytes=request["memory_bytes"],
        time_limit_s=request["time_limit_s"],
        lease_s=TIMERS.lease_s if request["on_node_lost"] == "requeue" else None,
        grace_s=request["grace_s"],
        stop_to=request["stop_to"],
        checkpoint_dir=str(storage / "checkpoints" / stage.name) if storage else "",
        output_dir=str(storage / "outputs" / stage.name) if storage else "",
        input_dir=str(storage / "outputs") if storage else "",
        resume_from=newest.get(stage.id, ""),
        master_addr=gang[0].node.address or "127.0.0.1",
        # The same on all ranks without anybody asking anybody, and unlikely to meet another gang's.
        master_port=29_500 + zlib.crc32(attempt.id.bytes) % 2_000,
    )
