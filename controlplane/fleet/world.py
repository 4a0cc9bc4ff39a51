"""Reads nodes and devices from the database as the scheduler's types, in two queries."""

from __future__ import annotations

import re
import time
import uuid
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import msgspec
from django.db import connection

from agents import protocol
from controlplane.clauses import Told, clause, of_error, told
from controlplane.fleet import amounts, bounds, divisions
from scheduler.core.model.lifecycle import Health, NodeState
from scheduler.core.model.types import Device, Mode, Node

# One statement and one round trip; PostgreSQL builds the rows as JSON faster than rows can be converted one by one.
_LEVELS = ", ".join(f"'{level}'" for level in protocol.ISOLATION)
_FLEET = f"""
SELECT (SELECT coalesce(json_agg(json_build_array(n.id, n.name,
            -- What runs where a disk is full or a check of the operator's fails goes on; nothing new is placed there.
            CASE WHEN n.state = 'READY' AND (n.conditions->'disk_pressure' = 'true' OR n.conditions ? 'unfit')
                 THEN 'DRAINING' ELSE n.state END,
            n.labels,
            n.container_engine IS DISTINCT FROM '',
            (SELECT json_build_array(coalesce(bool_and(p.repartition), false),
                                     coalesce(json_agg(p.name ORDER BY p.name), '[]'))
             FROM fleet_node_pools np JOIN pools_pool p ON p.id = np.pool_id
             -- A node that keeps projects less apart than a pool requires is, to the engine, not in it.
             WHERE np.node_id = n.id AND (p.isolation = 'none' OR
                   array_position(ARRAY[{_LEVELS}], p.isolation::text)
                   <= array_position(ARRAY[{_LEVELS}], n.isolation::text))),
            n.fetch_gbps, n.load, n.mounts, n.disk_bytes, n.disk_total_bytes, n.network_mbps,
            (SELECT coalesce(json_object_agg(l.source_id, l.gbps), '{{}}') FROM fleet_nodelink l
             WHERE l.target_id = n.id))
            ORDER BY n.id), '[]')::text FROM fleet_node n WHERE %s OR n.id = ANY(%s)),
       (SELECT coalesce(json_agg(json_build_array(id, node_id, kind, vendor, model, index, memory_bytes, capacity_milli,
            mode, health, numa, features, CASE WHEN fenced_until > now() THEN fenced_for END, division,
            extract(epoch FROM fenced_until)::float8, link_group, busy, sharing)
            ORDER BY id), '[]')::text
        FROM fleet_device WHERE present AND (%s OR node_id = ANY(%s)))
"""


def parsed(value: Any) -> Any:
    """Parse a jsonb column of a raw query, which Django leaves as text."""
    return msgspec.json.decode(value) if isinstance(value, str) else value


_DEVICE = (
    "id", "node", "kind", "vendor", "model", "index", "memory_bytes", "capacity_milli", "mode", "health", "numa",
    "features", "fenced_for", "division", "fenced_until", "link_group", "busy", "sharing",
)  # fmt: skip
_DeviceRow = tuple[
    str, str, str, str, str, int, protocol.Bytes, protocol.Milli, Mode, Health, int | None, dict[str, protocol.Rate],
    str | None, dict[str, Any] | None, float | None, int | None, float | None, str,
]  # fmt: skip
_NodeRow = tuple[
    str, str, NodeState, dict[str, str], bool, tuple[bool, list[str]], float | None, float, tuple[str, ...],
    int, int, int, dict[str, float],
]  # fmt: skip
_read_devices = msgspec.json.Decoder(list[_DeviceRow]).decode
_read_nodes = msgspec.json.Decoder(list[_NodeRow]).decode
_read_pieces = msgspec.json.Decoder(list[msgspec.Raw]).decode
_COLUMN = re.compile(r" - at `\$\[(\d+)\]")

Aside = dict[str, Told]
"""Nodes by name whose rows cannot be used, with the reason."""


class FleetReader:
    """Reads all nodes with their reported devices, and later only those that changed. ``nodes`` are in the order of
    their ids; an unchanged node stays the same object.

    Invalid rows, from before values were bounded or written by hand, must not stop the scheduler: a node with one is
    included without devices, so nothing starts on it and other nodes are unaffected. ``aside`` has these nodes, with
    the reason.
    """

    def __init__(self) -> None:
        self.nodes: tuple[Node, ...] = ()
        self.aside: Aside = {}
        self._known: dict[str, Node] = {}
        # Nodes with a fenced device, because a fence ends by time alone.
        self._fenced: set[str] = set()

    def read(self, cursor: Any, changed: Collection[uuid.UUID] | None) -> None:
        """Read the nodes that ``changed`` again, or all of them (``None``)."""
        stale = set(self._known) if changed is None else {*map(str, changed), *self._fenced}
        if changed is not None and not stale:
            return
        cursor.execute(_FLEET, [changed is None, list(stale)] * 2)
        found, bad = _read(*cursor.fetchone())
        read = {node.id: node for node in found}
        self._fenced -= stale
        self._fenced |= {node.id for node in found if any(one.fenced_until is not None for one in node.devices)}
        news: dict[str, Node | None] = {i: None for i in stale if i in self._known and i not in read}
        news |= {i: node for i, node in read.items() if self._known.get(i) != node}
        looked_at = {self._known[i].name for i in stale if i in self._known} | {node.name for node in found}
        self.aside = {name: why for name, why in self.aside.items() if name not in looked_at} | bad
        if not news:
            return
        known = self._known | {i: node for i, node in news.items() if node is not None}
        self._known = {i: known[i] for i in sorted(known) if news.get(i, known[i]) is not None}
        self.nodes = tuple(self._known.values())


def nodes() -> tuple[Node, ...]:
    """All nodes with their reported devices."""
    fleet = FleetReader()
    with connection.cursor() as cursor:
        fleet.read(cursor, None)
    return fleet.nodes


def _read(node_text: str, device_text: str) -> tuple[tuple[Node, ...], Aside]:
    bad: Aside = {}
    node_rows, device_rows = _node_rows(node_text), _device_rows(device_text, bad)
    devices: dict[str, list[Device]] = defaultdict(list)
    dividing = {row[0] for row in node_rows if row[5][0]}
    for row in device_rows:
        try:
            devices[row[1]].append(_device(row, row[1] in dividing))
        except (msgspec.ValidationError, KeyError, TypeError, ValueError, OverflowError) as error:
            bad[row[1]] = told(clause("DeviceUnusable", device=f"{row[2]}-{row[5]}", fault=of_error(error)))
    found = tuple(
        Node(
            id=i,
            name=name,
            state=state,
            pools=tuple(pools),
            devices=() if i in bad else (*devices[i], *amounts.devices(i, labels, *has)),
            labels=labels,
            runs_images=runs_images,
            fetch_gbps=fetch_gbps,
            load=load,
            mounts=mounts,
            links=linked,
        )
        for i, name, state, labels, runs_images, (_, pools), fetch_gbps, load, mounts, *has, linked in node_rows
    )
    return found, {node.name: bad[node.id] for node in found if node.id in bad}


def _device(row: _DeviceRow, may_divide: bool) -> Device:
    (i, node, kind, vendor, model, index, memory, capacity, mode, health, numa, features, fenced, division) = row[:14]
    until, group, busy, sharing = row[14:]
    table, made, whole = "", None, True
    if division is not None:
        table, made, whole = divisions.for_engine(vendor, model, division, may_divide=may_divide)
    return Device(
        id=i,
        node=node,
        kind=kind,
        vendor=vendor,
        model=model,
        index=index,
        memory_bytes=memory,
        capacity_milli=capacity,
        mode=mode,
        health=health,
        numa=numa,
        features=features,
        fenced_for=fenced,
        fenced_until=until if fenced else None,
        warned=health == Health.DEGRADED,
        partitions=table,
        made=made,
        whole=whole,
        group=group,
        busy=busy,
        sharing=sharing,
    )


def _node_rows(text: str) -> list[_NodeRow]:
    try:
        return _read_nodes(text)
    except msgspec.ValidationError:
        pass  # labels with values that are not strings: they are converted below
    rows = []
    for i, name, state, labels, *others in msgspec.json.decode(text):
        words = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
        rows.append(msgspec.convert((i, name, state, words, *others), _NodeRow))
    return rows


def _device_rows(text: str, bad: Aside) -> list[_DeviceRow]:
    try:
        return _read_devices(text)
    except msgspec.ValidationError:
        pass  # decoded again below, one by one
    rows = []
    for piece in _read_pieces(text):
        try:
            rows.append(msgspec.json.decode(piece, type=_DeviceRow))
        except msgspec.ValidationError as error:
            row = _read_pieces(piece)
            at = _COLUMN.search(str(error))
            column = int(at[1]) if at else 0
            kind, index = (bytes(row[_DEVICE.index(name)]).decode().strip('"') for name in ("kind", "index"))
            value = bytes(row[column]).decode()
            says = bounds.spoken(str(error)[: at.start()] if at else str(error))
            of = {"device": f"{kind}-{index}", "field": _DEVICE[column], "fault": says}
            bad[msgspec.json.decode(row[1])] = told(
                clause("DeviceField", **of) if len(value) > 60 else clause("DeviceFieldIs", value=value, **of)
            )
    return rows


_remembered: tuple[float, tuple[Node, ...]] = (float("-inf"), ())


def recent_nodes(within_s: float = 2.0) -> tuple[Node, ...]:
    """Like :func:`nodes`, at most ``within_s`` seconds old: nodes change rarely, and every submit needs them."""
    global _remembered
    at, found = _remembered
    if time.monotonic() - at > within_s:
        found = nodes()
        _remembered = (time.monotonic(), found)
    return found
