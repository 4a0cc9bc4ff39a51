"""The fleet as the engine sees it: rows of nodes and devices become the engine types in two queries."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import msgspec
from django.db import connection

from scheduler.core.lifecycle import Health, NodeState
from scheduler.core.types import Device, Mode, Node

_NODES = """
SELECT n.id::text, n.name, n.state, n.labels,
       coalesce(array_agg(p.name ORDER BY p.name) FILTER (WHERE p.name IS NOT NULL), '{}')
FROM fleet_node n LEFT JOIN fleet_node_pools np ON np.node_id = n.id LEFT JOIN pools_pool p ON p.id = np.pool_id
GROUP BY n.id ORDER BY n.id
"""
_DEVICES = """
SELECT id::text, node_id::text, kind, vendor, model, index, memory_bytes, capacity_milli, mode, health, numa, features,
       CASE WHEN fenced_until > now() THEN fenced_for::text END
FROM fleet_device WHERE present ORDER BY id
"""


def parsed(value: Any) -> Any:
    """A jsonb column of a raw query: Django leaves it as text."""
    return msgspec.json.decode(value) if isinstance(value, str) else value


def nodes() -> tuple[Node, ...]:
    """All nodes with the devices that they report."""
    devices: dict[str, list[Device]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(_DEVICES)
        for i, node, kind, vendor, model, index, memory, capacity, mode, health, numa, features, fenced in cursor:
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
                    features=parsed(features),
                    fenced_for=fenced,
                )
            )
        cursor.execute(_NODES)
        return tuple(
            Node(
                id=i,
                name=name,
                state=NodeState(state),
                pools=tuple(pools),
                devices=tuple(devices[i]),
                labels=parsed(labels),
            )
            for i, name, state, labels, pools in cursor.fetchall()
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
