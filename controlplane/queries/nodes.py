"""Nodes, their devices and their stages."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import django_filters
import msgspec
from django.db.models import Prefetch, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.fleet import alarms
from controlplane.fleet import maintenance as fleet_maintenance
from controlplane.fleet import models as rows
from controlplane.jobs import node_amounts
from controlplane.natural import natural_key
from controlplane.pools.isolation import is_below
from controlplane.pools.models import Pool
from controlplane.queries import devices, hosts, maintenance, survivors
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.devices import Device
from controlplane.queries.maintenance import MaintenanceWindow
from controlplane.queries.reading import Representation, listed, seen
from controlplane.queries.refusals import Unseen
from controlplane.queries.survivors import Survivor
from scheduler.core.model.lifecycle import NodeState


class Node(msgspec.Struct, frozen=True):
    """A machine that runs an agent. ``alarms`` are sentences about what the server refuses or ignores of it. While it
    drains, what still runs at ``drain_stop_at`` is stopped and queued again; null where it may finish.

    ``isolation`` tells how far it keeps stages of different projects apart: none, user, private or full; those of its
    ``pools`` in ``too_open_for`` require more and run nothing here. ``executor`` is the foreign engine whose jobs its
    stages are, empty where they run on the node itself, and ``lacks`` what that engine cannot give.
    """

    id: uuid.UUID
    name: str
    state: NodeState
    reason: str
    reason_said: list[Clause]
    drain_stop_at: datetime | None
    pools: list[str]
    simulated: bool
    runs_as: str
    isolation: str
    too_open_for: list[str]
    container_engine: str | None
    mounts: list[str]
    executor: str
    lacks: list[str]
    lacks_said: list[list[Clause]]
    agent_version: str
    hostname: str
    os: str
    arch: str
    memory_bytes: int
    last_report_at: datetime | None
    conditions: dict[str, Any]
    alarms: list[str]
    alarms_said: list[list[Clause]]
    labels: dict[str, str]
    maintenance: list[MaintenanceWindow]
    devices: list[Device]


class NodeAmounts(msgspec.Struct, frozen=True):
    """What a node has as a whole for its stages, and what they hold of it: bytes of disk space, and MB/s of the disk
    and the network. 0 is none or unknown. ``disk_total_bytes`` is the size of the file system."""

    disk_total_bytes: int
    disk_bytes: int
    disk_held_bytes: int
    disk_mbps: int
    disk_held_mbps: int
    network_mbps: int
    network_held_mbps: int


class NodeDetail(Node, frozen=True):
    """A machine that runs an agent, with measurements of its host; null if it reported none. ``survivors`` are for
    staff only."""

    amounts: NodeAmounts
    host: hosts.Host | None
    survivors: list[Survivor]


def shown(nodes: Iterable[rows.Node], user: User) -> list[Node]:
    """These nodes with their devices, as this user sees them; their pools must be prefetched."""
    nodes = list(nodes)
    by_id = {node.id: node for node in nodes}
    found = list(devices.present().select_related(None).filter(node__in=list(by_id)).order_by("kind", "index"))
    for row in found:
        row.node = by_id[row.node_id]
    by_node: dict[str, list[Device]] = defaultdict(list)
    for device in devices.shown(found, user):
        by_node[device.node].append(device)
    windows = fleet_maintenance.by_node(nodes, timezone.now())
    wrong = alarms.of_nodes([node.name for node in nodes])
    return [
        Node(
            id=node.id,
            name=node.name,
            state=NodeState(node.state),
            reason=node.reason,
            reason_said=clauses(node.reason_said),
            drain_stop_at=node.drain_stop_at,
            pools=sorted((pool.name for pool in node.pools.all()), key=natural_key),
            simulated=node.simulated,
            runs_as=node.runs_as,
            isolation=node.isolation,
            too_open_for=sorted(pool.name for pool in node.pools.all() if is_below(node.isolation, pool.isolation)),
            container_engine=node.container_engine,
            mounts=node.mounts,
            executor=node.executor,
            lacks=node.lacks,
            lacks_said=[clauses(said) for said in node.lacks_said],
            agent_version=node.agent_version,
            hostname=node.hostname,
            os=node.os,
            arch=node.arch,
            memory_bytes=node.memory_bytes,
            last_report_at=node.last_report_at,
            conditions=node.conditions,
            alarms=[alarm.text for alarm in wrong.get(node.name, ())],
            alarms_said=[clauses(alarm.said) for alarm in wrong.get(node.name, ())],
            labels=node.labels,
            maintenance=maintenance.shown(windows[node.name]),
            devices=by_node[node.name],
        )
        for node in nodes
    ]


def all_nodes() -> QuerySet[rows.Node]:
    """The nodes with their pools."""
    return rows.Node.objects.prefetch_related(Prefetch("pools", Pool.objects.only("name", "isolation")))


def found(name: str) -> rows.Node:
    """The node with this name or id; raises 404."""
    query = Q(name=name)
    try:
        query |= Q(id=uuid.UUID(name))
    except ValueError:
        pass  # a name, then
    node = all_nodes().filter(query).first()
    if node is None:
        raise Unseen(_("node {name}").format(name=name[:63]))
    return node


def details(nodes: Iterable[rows.Node], user: User) -> list[NodeDetail]:
    """These nodes, with measurements of their hosts."""
    nodes, sees = list(nodes), permissions.may(user, Permit.SEE_NODES)
    return [
        NodeDetail(
            **msgspec.structs.asdict(shown_node),
            amounts=_amounts(node),
            host=hosts.shown(node),
            survivors=survivors.of_nodes([node]) if sees else [],
        )
        for node, shown_node in zip(nodes, shown(nodes, user), strict=True)
    ]


def _amounts(node: rows.Node) -> NodeAmounts:
    disk_bytes, disk_mbps, network_mbps = node_amounts.capacity(node)
    disk_held, disk_held_mbps, network_held_mbps = node_amounts.held([node.id]).get(node.id, (0, 0, 0))
    return NodeAmounts(
        node.disk_total_bytes, disk_bytes, disk_held, disk_mbps, disk_held_mbps, network_mbps, network_held_mbps
    )


class NodeFilter(django_filters.FilterSet):
    """Filters of nodes."""

    state = django_filters.CharFilter(method="in_states", help_text="Such as READY or LOST.")
    pool = django_filters.CharFilter("pools__name", help_text="Name of a pool.")
    q = django_filters.CharFilter("name", lookup_expr="icontains", help_text="A part of the name.")

    def in_states(self, nodes: QuerySet[rows.Node], name: str, value: str) -> QuerySet[rows.Node]:
        return nodes.filter(state__in=value.upper().split(","))


# Natural order by name: n2 before n10.
ORDER = "sort_key"


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the nodes that ``params`` ask for."""
    return listed(user, "/nodes", params, NodeFilter(params, all_nodes()), ORDER, shown)


def one(user: User, name: str) -> Representation:
    """The node with this name or id, with measurements of its host."""
    return seen(user, f"/nodes/{name}", details([found(name)], user)[0])
