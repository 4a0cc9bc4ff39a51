"""Keeps parts within what their nodes have as a whole: disk space, and bandwidth of disk and network.

Unlike devices these have no rows of their own: a part holds its amounts from its start to its end.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from django.db import IntegrityError
from django.db.models import BigIntegerField, Sum
from django.db.models.functions import Coalesce

from controlplane.fleet import amounts
from controlplane.fleet.models import Node
from controlplane.jobs.models import Part
from scheduler.core.model.kinds import DISK, NETWORK, amount_id, is_amount
from scheduler.core.model.types import Grant

COLUMNS: Final = ("disk_bytes", "disk_mbps", "network_mbps")


def give(part: Part, grants: Iterable[Grant]) -> None:
    """Enter into a new part what it is granted of its node as a whole."""
    for one in grants:
        if one.device == amount_id(str(part.node_id), DISK):
            part.disk_bytes, part.disk_mbps = one.memory_bytes, one.milli
        elif one.device == amount_id(str(part.node_id), NETWORK):
            part.network_mbps = one.milli


def of_devices(grants: Iterable[Grant]) -> list[Grant]:
    """Return the grants of devices, without amounts of nodes."""
    return [one for one in grants if not is_amount(one.device)]


def check(parts: Sequence[Part]) -> None:
    """Raise IntegrityError if these new parts and those that run would exceed what a node has.

    The nodes must be locked, and the parts not be stored yet.
    """
    asked: dict[uuid.UUID, list[int]] = defaultdict(lambda: [0, 0, 0])
    for part in parts:
        for i, name in enumerate(COLUMNS):
            asked[part.node_id][i] += getattr(part, name)
    asking = [node for node, values in asked.items() if any(values)]
    if not asking:
        return
    taken = held(asking)
    for node in Node.objects.filter(id__in=asking):
        used_here = taken.get(node.id, (0, 0, 0))
        for name, there, used, more in zip(COLUMNS, capacity(node), used_here, asked[node.id], strict=True):
            if more and used + more > there:
                raise IntegrityError(f"{node.name} has {name} {there}; {used} are held and {more} were asked for")


def capacity(node: Node) -> tuple[int, int, int]:
    """Return what a node has for its parts, in the order of ``COLUMNS``."""
    found = amounts.devices(str(node.id), node.labels, node.disk_bytes, node.disk_total_bytes, node.network_mbps)
    has = {one.kind: (one.memory_bytes, one.capacity_milli) for one in found}
    disk_bytes, disk_mbps = has.get(DISK, (0, 0))
    return disk_bytes, disk_mbps, has.get(NETWORK, (0, 0))[1]


def held(nodes: Iterable[uuid.UUID]) -> dict[uuid.UUID, tuple[int, int, int]]:
    """Return what the parts of these nodes hold, in the order of ``COLUMNS``; nodes without parts are absent."""
    parts = Part.objects.filter(node__in=list(nodes), ended_at=None).order_by()
    sums = [Coalesce(Sum(name), 0, output_field=BigIntegerField()) for name in COLUMNS]
    rows = parts.values("node_id").annotate(disk=sums[0], disk_rate=sums[1], network_rate=sums[2])
    return {row["node_id"]: (row["disk"], row["disk_rate"], row["network_rate"]) for row in rows}
