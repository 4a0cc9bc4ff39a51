"""The fleet as the engine sees it: rows of nodes and devices become the engine types in two queries."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import msgspec
from django.db import connection

from controlplane.fleet import divisions
from scheduler.core.lifecycle import Health, NodeState
from scheduler.core.types import Device, Mode, Node

# One statement and one round trip; PostgreSQL builds the rows as JSON faster than rows can be converted one by one.
_FLEET = """
SELECT (SELECT coalesce(json_agg(json_build_array(n.id, n.name, n.state, n.labels,
            n.container_engine IS DISTINCT FROM '',
            (SELECT json_build_array(coalesce(bool_and(p.repartition), false),
                                     coalesce(json_agg(p.name ORDER BY p.name), '[]'))
             FROM fleet_node_pools np JOIN pools_pool p ON p.id = np.pool_id WHERE np.node_id = n.id))
            ORDER BY n.id), '[]') FROM fleet_node n),
       (SELECT coalesce(json_agg(json_build_array(id, node_id, kind, vendor, model, index, memory_bytes, capacity_milli,
            mode, health, numa, features, CASE WHEN fenced_until > now() THEN fenced_for END, division)
            ORDER BY id), '[]')
        FROM fleet_device WHERE present)
"""


def parsed(value: Any) -> Any:
    """A jsonb column of a raw query: Django leaves it as text."""
    return msgspec.json.decode(value) if isinstance(value, str) else value


def nodes() -> tuple[Node, ...]:
    """All nodes with the devices that they report."""
    with connection.cursor() as cursor:
        cursor.execute(_FLEET)
        node_rows, device_rows = (parsed(column) for column in cursor.fetchone())
    devices: dict[str, list[Device]] = defaultdict(list)
    dividing = {i for i, *_, (may_divide, _pools) in node_rows if may_divide}
    for row in device_rows:
        i, node, kind, vendor, model, index, memory, capacity, mode, health, numa, features, fenced, division = row
        table, made, whole = "", None, True
        if division is not None:
            table, made, whole = divisions.for_engine(vendor, model, division, may_divide=node in dividing)
        devices[node].append(
            Device(
                id=i,
                node=node,
                kind=kind,
                vendor=vendor,
                model=model,
                index=index,
                memory_bytes=memory,
                capacity_milli=capacity,
                mode=Mode(mode),
                health=Health(health),
                numa=numa,
                features=features,
                fenced_for=fenced,
                warned=health == Health.DEGRADED,
                partitions=table,
                made=made,
                whole=whole,
            )
        )
    return tuple(
        Node(
            id=i,
            name=name,
            state=NodeState(state),
            pools=tuple(pools),
            devices=tuple(devices[i]),
            labels=labels,
            runs_images=runs_images,
        )
        for i, name, state, labels, runs_images, (_, pools) in node_rows
    )


_remembered: tuple[float, tuple[Node, ...]] = (float("-inf"), ())


def recent_nodes(within_s: float = 2.0) -> tuple[Node, ...]:
    """Like :func:`nodes`, at most ``within_s`` old: what there is changes rarely, and every submit asks for it."""
    global _remembered
    at, found = _remembered
    if time.monotonic() - at > within_s:
        found = nodes()
        _remembered = (time.monotonic(), found)
    return found
