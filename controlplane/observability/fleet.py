"""Gathers what ``/metrics`` says of nodes and devices: a fixed number of statements."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection
from django.utils import timezone

from controlplane.fleet.world import parsed
from controlplane.jobs.held_idle import held_idle_lately
from controlplane.observability.gathering import MOST, Gathered
from scheduler.core.model.lifecycle import USABLE_HEALTH, NodeState

# Older measurements do not describe the present.
FRESH: Final = timedelta(seconds=60)
MOST_MOUNTS: Final = 16
AWAY: Final = frozenset({NodeState.LOST, NodeState.JOINING})

_NODES = """
SELECT n.name, n.state, n.agent_version, extract(epoch FROM n.last_report_at)::float8,
       coalesce((SELECT string_agg(o.name, ',' ORDER BY o.name) FROM fleet_node_pools np
                 JOIN pools_pool o ON o.id = np.pool_id WHERE np.node_id = n.id), ''),
       h.file_systems::text, h.free_bytes::text, count(*) OVER ()
FROM fleet_node n LEFT JOIN fleet_host h ON h.node_id = n.id ORDER BY n.created_at, n.id LIMIT %s
"""
_DEVICES = """
SELECT d.id, d.uuid, d.index, d.vendor, d.kind, d.model, d.memory_bytes, d.health, d.claimed_milli, d.capacity_milli,
       n.name, n.state, count(*) OVER (),
       coalesce((SELECT string_agg(o.name, ',' ORDER BY o.name) FROM fleet_node_pools np
                 JOIN pools_pool o ON o.id = np.pool_id WHERE np.node_id = n.id), ''),
       s.utilisation, s.memory_used_bytes, s.power_w, s.temperature_c
FROM fleet_device d JOIN fleet_node n ON n.id = d.node_id LEFT JOIN LATERAL (
    SELECT * FROM fleet_device_sample WHERE device_id = d.id AND at > %s ORDER BY at DESC LIMIT 1) s ON true
WHERE d.present ORDER BY n.created_at, n.id, d.kind, d.index LIMIT %s
"""
# Of accelerators that take work: free capacity by node, and of that what lies beside something that is held.
_FREE = """
SELECT d.kind, d.node_id, sum(d.capacity_milli - d.claimed_milli)::float8, bool_or(d.claimed_milli > 0),
       count(*) FILTER (WHERE d.claimed_milli = 0)
FROM fleet_device d JOIN fleet_node n ON n.id = d.node_id
WHERE d.present AND d.kind <> 'cpu' AND n.state = 'READY' AND d.health = ANY(%s) GROUP BY 1, 2
"""
DEVICE_METRICS: Final = tuple(
    f"switchyard_device_{name}"
    for name in (
        "utilization_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts", "temperature_celsius", "health",
        "allocated", "held_idle",
    )
)  # fmt: skip


def gather(into: Gathered) -> None:
    """Gather everything of nodes and devices."""
    with connection.cursor() as cursor:
        _nodes(into, cursor)
        _devices(into, cursor)
        _free(into, cursor)


def _nodes(into: Gathered, cursor: Any) -> None:
    cursor.execute(_NODES, [MOST])
    rows = cursor.fetchall()
    for name, state, version, reported_at, pools, file_systems, free_bytes, _count in rows:
        into.set("switchyard_node_state", 1, name, pools, state)
        into.set("switchyard_agent_last_heartbeat_timestamp_seconds", reported_at, name)
        if version:
            into.set("switchyard_agent_info", 1, name, version)
        free: dict[str, float] = parsed(free_bytes) or {}
        sizes: dict[str, float | None] = {one["mount"]: one.get("size_bytes") for one in parsed(file_systems) or ()}
        for mount in sorted(free.keys() & sizes.keys())[:MOST_MOUNTS]:
            into.set("switchyard_node_filesystem_free_bytes", free[mount], name, mount)
            into.set("switchyard_node_filesystem_size_bytes", sizes[mount], name, mount)
    if rows:
        into.more({"switchyard_node_state": rows[0][-1] - len(rows)})


def _devices(into: Gathered, cursor: Any) -> None:
    since: datetime = timezone.now() - FRESH
    cursor.execute(_DEVICES, [since, MOST])
    rows = cursor.fetchall()
    idle = held_idle_lately() if rows else set()
    for (
        row_id, uuid, index, vendor, kind, model, memory_bytes, health, claimed, _capacity, node, state, _count, pools,
        utilisation, used_bytes, power_w, temperature_c,
    ) in rows:  # fmt: skip
        is_usable = health in USABLE_HEALTH and state not in AWAY
        values = (
            utilisation, used_bytes, memory_bytes or None, power_w, temperature_c, float(is_usable), float(claimed > 0),
            float(row_id in idle),
        )  # fmt: skip
        for metric, value in zip(DEVICE_METRICS, values, strict=True):
            into.set(metric, value, pools, node, str(index), uuid, vendor, kind, model)
    if rows:
        into.more({metric: rows[0][12] - len(rows) for metric in DEVICE_METRICS})


def _free(into: Gathered, cursor: Any) -> None:
    cursor.execute(_FREE, [list(USABLE_HEALTH)])
    free: dict[str, float] = defaultdict(float)
    beside: dict[str, float] = defaultdict(float)
    largest: dict[str, int] = defaultdict(int)
    for kind, _node, milli, is_held, whole in cursor.fetchall():
        free[kind] += milli
        beside[kind] += milli if is_held else 0.0
        largest[kind] = max(largest[kind], whole)
    for kind in sorted(free):
        into.set("switchyard_largest_gang_devices", largest[kind], kind)
        into.set("switchyard_fragmentation_ratio", beside[kind] / free[kind] if free[kind] else 0.0, kind)
