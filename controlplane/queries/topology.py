"""Topology: the NUMA nodes and link groups of each node, and the domain that it shares with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import django_filters
import msgspec
from django.db.models import Prefetch, QuerySet

from agents import protocol
from controlplane.accounts.models import User
from controlplane.fleet import links
from controlplane.fleet import models as rows
from controlplane.queries.nodes import ORDER
from controlplane.queries.reading import Representation, listed
from scheduler.core.model.lifecycle import NodeState
from scheduler.core.model.types import Node as Seen
from scheduler.core.resources import topology


class NearLink(msgspec.Struct, frozen=True):
    """A link of a device. ``peer`` names a device of the node (``gpu1``), a switch, or the ``host``; ``gbps`` is in
    GB/s, null if the agent does not report it."""

    peer: str
    type: str
    gbps: float | None


class NearDevice(msgspec.Struct, frozen=True):
    """The place of a device in its node. ``group`` is the number of its link group and ``numa`` its NUMA node, null if
    unknown; ``pcie`` is its connection to the host, such as ``gen5 x16``. ``busy`` is its recent mean utilisation, from
    0 to 1 in steps of an eighth, as the engine uses it."""

    name: str
    uuid: str
    kind: str
    model: str
    numa: int | None
    group: int | None
    pcie: str
    memory_gbps: float | None
    busy: float | None
    links: list[NearLink]


class LinkGroup(msgspec.Struct, frozen=True):
    """Devices joined by links that are faster than those through the host. ``gbps`` is the slowest of these links in
    GB/s, null if unknown; ``types`` are their kinds."""

    number: int
    types: list[str]
    gbps: float | None
    devices: list[str]


class MeasuredLink(msgspec.Struct, frozen=True):
    """The bandwidth from another node in Gbit/s, as measured from inputs that came from there, the last ``at``."""

    node: str
    gbps: float
    at: datetime


class Topology(msgspec.Struct, frozen=True):
    """A node and its network domain. ``gbps`` is the bandwidth of its link to the others of its ``domain`` in Gbit/s,
    as its label ``link-gbps`` declares it, or as measured from transfers of inputs if ``is_measured``; null if unknown.
    ``measured`` are links from other nodes, the slowest first; few of all pairs are measured. ``load`` is 0 for an idle
    node and 1 for a full one; above 1 work queues."""

    node: str
    domain: str
    gbps: float | None
    is_measured: bool
    measured: list[MeasuredLink]
    load: float
    groups: list[LinkGroup]
    devices: list[NearDevice]


class TopologyFilter(django_filters.FilterSet):
    """Filters of the topology."""

    node = django_filters.CharFilter("name", help_text="Name of a node.")
    pool = django_filters.CharFilter("pools__name", help_text="Name of a pool.")


def nodes_with_devices() -> QuerySet[rows.Node]:
    """The nodes with the devices that they report."""
    present = rows.Device.objects.filter(present=True).order_by("kind", "index")
    linked = rows.NodeLink.objects.select_related("source").order_by("gbps", "source__sort_key")
    return rows.Node.objects.prefetch_related(Prefetch("devices", present), Prefetch("links_from", linked))


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the nodes that ``params`` ask for."""
    return listed(user, "/topology", params, TopologyFilter(params, nodes_with_devices()), ORDER, shown)


def shown(nodes: Iterable[rows.Node], user: User) -> list[Topology]:
    """These nodes with their devices and links, which must be prefetched; everybody sees them."""
    return [_shown(node) for node in nodes]


def _shown(node: rows.Node) -> Topology:
    """A node with its devices and links, which must be prefetched."""
    devices = list(node.devices.all())
    names = {device.uuid: f"{device.kind}{device.index}" for device in devices}
    seen = Seen(str(node.id), node.name, NodeState(node.state), (), (), node.labels, fetch_gbps=node.fetch_gbps)
    gbps = topology.bandwidth(seen) or None
    near = {device.uuid: links_of(device, names) for device in devices}
    return Topology(
        node=node.name,
        domain=topology.domain(seen),
        gbps=gbps,
        is_measured=gbps is not None and not topology.declared(seen),
        measured=[MeasuredLink(link.source.name, link.gbps, link.at) for link in node.links_from.all()],
        load=node.load,
        groups=_groups(devices, names, near),
        devices=[
            NearDevice(
                name=names[device.uuid],
                uuid=device.uuid,
                kind=device.kind,
                model=device.model,
                numa=device.numa,
                group=device.link_group,
                pcie=str(device.attributes.get("pcie", "")),
                memory_gbps=device.features.get("memory_gbps"),
                busy=device.busy,
                links=near[device.uuid],
            )
            for device in devices
        ],
    )


def links_of(device: rows.Device, names: dict[str, str]) -> list[NearLink]:
    """The links of a device; none for rows from before inputs were bounded."""
    try:
        told = msgspec.convert(device.links, list[protocol.Link])
    except msgspec.ValidationError:
        return []
    return [NearLink(names.get(link.peer, link.peer), link.type, link.gbps) for link in told]


def _groups(devices: Iterable[rows.Device], names: dict[str, str], near: dict[str, list[NearLink]]) -> list[LinkGroup]:
    members: dict[int, list[str]] = {}
    for device in devices:
        if device.link_group is not None:
            members.setdefault(device.link_group, []).append(device.uuid)
    found = []
    for number, uuids in sorted(members.items()):
        joining = [link for uuid in uuids for link in near[uuid] if link.type not in links.THROUGH_HOST]
        fast = [link for link in joining if link.type not in links.SWITCHED] or joining
        told = [link.gbps for link in fast if link.gbps is not None]
        types = sorted({link.type for link in fast})
        found.append(LinkGroup(number, types, min(told, default=None), [names[uuid] for uuid in uuids]))
    return found
