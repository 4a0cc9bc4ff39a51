"""Nodes and what runs on them; staff drain and resume them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Prefetch, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.api import devices, hosts, maintenance, survivors
from controlplane.api.action import permitted_action
from controlplane.api.devices import Device
from controlplane.api.maintenance import MaintenanceWindow
from controlplane.api.page import PAGE_DESCRIBED, PageQuery, page_of
from controlplane.api.problem import Problem, not_found
from controlplane.api.resource import Resource, asked, parameters, signed_in
from controlplane.api.survivors import Survivor
from controlplane.fleet import alarms, service
from controlplane.fleet import maintenance as fleet_maintenance
from controlplane.fleet import models as rows
from controlplane.jobs import record
from controlplane.natural import natural_key
from controlplane.pools.isolation import is_below
from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import NodeState


class Node(msgspec.Struct, frozen=True):
    """A machine that runs an agent. ``alarms`` say what of it the server refuses or leaves out, in sentences.

    ``isolation`` tells how far it keeps stages of different projects apart: none, user, private or full; of its
    ``pools``, ``too_open_for`` require more, and run nothing here.
    """

    id: uuid.UUID
    name: str
    state: NodeState
    reason: str
    pools: list[str]
    simulated: bool
    runs_as: str
    isolation: str
    too_open_for: list[str]
    container_engine: str | None
    agent_version: str
    hostname: str
    os: str
    arch: str
    memory_bytes: int
    last_report_at: datetime | None
    conditions: dict[str, Any]
    alarms: list[str]
    labels: dict[str, str]
    maintenance: list[MaintenanceWindow]
    devices: list[Device]


class NodeDetail(Node, frozen=True):
    """A machine that runs an agent, with how its host is; null where it told nothing of it. ``survivors`` are for staff
    only."""

    host: hosts.Host | None
    survivors: list[Survivor]


class NodePage(msgspec.Struct, frozen=True):
    """One page of nodes, by name: n2 before n10."""

    results: list[Node]
    next: str | None
    previous: str | None


class NodeQuery(PageQuery, frozen=True):
    """What a list of nodes may be narrowed by."""

    state: str = ""
    pool: str = ""
    q: str = ""


DESCRIBED = {
    "state": "Such as READY or LOST.",
    "pool": "Name of a pool.",
    "q": "A part of the name.",
    **PAGE_DESCRIBED,
}


def shown(nodes: Iterable[rows.Node], user: User) -> list[Node]:
    """These nodes with their devices, as this user sees them; their pools must be prefetched."""
    nodes = list(nodes)
    by_node: dict[str, list[Device]] = defaultdict(list)
    for device in devices.shown(
        devices.present().filter(node__in=[node.id for node in nodes]).order_by("kind", "index"), user
    ):
        by_node[device.node].append(device)
    windows = fleet_maintenance.by_node(nodes, timezone.now())
    wrong = alarms.of_nodes([node.name for node in nodes])
    return [
        Node(
            id=node.id,
            name=node.name,
            state=NodeState(node.state),
            reason=node.reason,
            pools=sorted((pool.name for pool in node.pools.all()), key=natural_key),
            simulated=node.simulated,
            runs_as=node.runs_as,
            isolation=node.isolation,
            too_open_for=sorted(pool.name for pool in node.pools.all() if is_below(node.isolation, pool.isolation)),
            container_engine=node.container_engine,
            agent_version=node.agent_version,
            hostname=node.hostname,
            os=node.os,
            arch=node.arch,
            memory_bytes=node.memory_bytes,
            last_report_at=node.last_report_at,
            conditions=node.conditions,
            alarms=wrong.get(node.name, []),
            labels=node.labels,
            maintenance=[maintenance.shown(window) for window in windows[node.name]],
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
        raise not_found(_("node {name}").format(name=name[:63]))
    return node


class Nodes(Resource):
    """The list of nodes."""

    @extend_schema(operation_id="nodes_list", responses={200: NodePage}, parameters=parameters(NodeQuery, DESCRIBED))
    def get(self, request: Request) -> Response:
        """The nodes of the cluster with their devices."""
        query, chosen = asked(request, NodeQuery), all_nodes()
        if query.state:
            chosen = chosen.filter(state__in=query.state.upper().split(","))
        if query.pool:
            chosen = chosen.filter(pools__name=query.pool)
        if query.q:
            chosen = chosen.filter(name__icontains=query.q)
        page, links = page_of(chosen, request, "sort_key", limit=query.limit, descending=False)
        return Response(NodePage(shown(page, signed_in(request)), **links))


class OneNode(Resource):
    """One node."""

    @extend_schema(operation_id="nodes_get", responses={200: NodeDetail, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """A node by its name or id, with how its host is."""
        node = found(name)
        (told,) = shown([node], signed_in(request))
        left = survivors.of_nodes([node]) if permissions.may(signed_in(request), Permit.SEE_NODES) else []
        return Response(NodeDetail(**msgspec.structs.asdict(told), host=hosts.shown(node), survivors=left))


NodeDrain = permitted_action(
    "node",
    "drain",
    Node,
    "Lets what runs finish and places nothing new. A reason is required.",
    permit=Permit.OPERATE_NODES,
    deed=gettext_noop("drain a node"),
    act=service.drain,
    found=found,
    shown=shown,
)
NodeLost = permitted_action(
    "node",
    "lost",
    Node,
    "Confirms that a node which is LOST is gone: what ran there has ended, and is started elsewhere if it may be. "
    "A reason is required.",
    permit=Permit.OPERATE_NODES,
    deed=gettext_noop("confirm that a node is gone"),
    act=record.give_up,
    found=found,
    shown=shown,
)
NodeRotate = permitted_action(
    "node",
    "rotate",
    Node,
    "Has the node's agent get a new credential through its link. The old one serves until the new one is used.",
    permit=Permit.OPERATE_NODES,
    deed=gettext_noop("give a node a new credential"),
    act=service.rotate,
    found=found,
    shown=shown,
)
NodeResume = permitted_action(
    "node",
    "resume",
    Node,
    "Gives a drained node work again.",
    permit=Permit.OPERATE_NODES,
    deed=gettext_noop("resume a node"),
    act=service.resume,
    found=found,
    shown=shown,
)
