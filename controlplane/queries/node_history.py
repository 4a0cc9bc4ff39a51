"""What a node did: the use of its devices over time, and the stages that ran on it and have ended, newest first."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from django.db import connection

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet import models as rows
from controlplane.jobs.models import Claim, Part
from controlplane.queries import metrics
from controlplane.queries.device_history import names_of
from controlplane.queries.metrics import DeviceSeries

MOST_DEVICES: Final = metrics.MOST_SERIES

# The newest parts of a node are among the newest claims of each of its devices: an index answers that for each device,
# however much has run there.
_NEWEST = """
SELECT DISTINCT c.part_id FROM fleet_device d CROSS JOIN LATERAL (
    SELECT part_id FROM jobs_claim WHERE device_id = d.id AND closed_at IS NOT NULL
    ORDER BY opened_at DESC LIMIT %(most)s
) c WHERE d.node_id = %(node)s
"""


class NodeSeries(msgspec.Struct, frozen=True):
    """Means of a node's devices over each step. All series have one value per time in ``at``."""

    at: list[datetime]
    devices: list[DeviceSeries]


class PastStage(msgspec.Struct, frozen=True):
    """An attempt of a stage that has left this node. ``job`` and the names are null if you may not see the job;
    ``devices`` counts by kind what it held here."""

    job: int | None
    name: str | None
    stage: str | None
    attempt: int | None
    project: str | None
    user: str | None
    cause: str
    exit_code: int | None
    devices: dict[str, int]
    opened_at: datetime
    closed_at: datetime


def measured(node: rows.Node, since_s: float) -> NodeSeries:
    """The measurements of the devices of this node over the span that ends now, of so many seconds."""
    over = metrics.span(since_s)
    devices = list(node.devices.filter(present=True).order_by("kind", "index")[:MOST_DEVICES])
    found = metrics.of_devices([device.id for device in devices], over)
    return NodeSeries(
        over.at,
        [
            DeviceSeries(d.uuid, node.name, d.kind, d.model, d.index, d.memory_bytes, d.simulated, *found[d.id])
            for d in devices
            if d.id in found
        ],
    )


def stages_of(node: rows.Node, user: User, most: int) -> list[PastStage]:
    """At most ``most`` stages that ran on this node and left it; those that this user may not see have no names."""
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST, {"node": node.id, "most": most})
        newest = [part for (part,) in cursor.fetchall()]
    held: dict[uuid.UUID, list[Claim]] = {}
    for claim in Claim.objects.filter(part__in=newest, device__node=node).select_related("device"):
        held.setdefault(claim.part_id, []).append(claim)
    over = {part: claims for part, claims in held.items() if all(claim.closed_at for claim in claims)}
    chosen = sorted(over, key=lambda part: (min(claim.opened_at for claim in over[part]), part), reverse=True)[:most]
    job = "attempt__stage__job"
    parts = Part.objects.filter(id__in=chosen).select_related(f"{job}__project", f"{job}__user").in_bulk()
    seen = _seen(chosen, user)
    return [_shown(parts[part], over[part], part in seen) for part in chosen]


def _seen(parts: Sequence[uuid.UUID], user: User) -> set[uuid.UUID]:
    visible = permissions.visible_jobs(user, "attempt__stage__job__")
    return set(Part.objects.filter(visible, id__in=parts).values_list("id", flat=True))


def _shown(part: Part, claims: Iterable[Claim], is_seen: bool) -> PastStage:
    attempt, claims = part.attempt, list(claims)
    return PastStage(
        **names_of(attempt, is_seen),
        cause=attempt.cause if is_seen else "",
        exit_code=attempt.exit_code if is_seen else None,
        devices=dict(Counter(claim.device.kind for claim in claims)),
        opened_at=min(claim.opened_at for claim in claims),
        closed_at=max(claim.closed_at for claim in claims if claim.closed_at),
    )
