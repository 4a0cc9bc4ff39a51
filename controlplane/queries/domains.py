"""The cluster by link domains: its nodes below the switch, rack or pool that they share, with their devices."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec
from django.db.models import QuerySet

from controlplane.fleet import models as rows
from controlplane.jobs.held_idle import held_idle_lately
from controlplane.natural import natural_key
from controlplane.queries import device_map
from controlplane.queries.device_map import SeenDevice
from scheduler.core.model.lifecycle import NodeState
from scheduler.core.model.types import Node as Seen
from scheduler.core.resources import topology

MOST_NODES: Final = 1024
MOST_LINKS: Final = 100
SITE: Final = "site"
# What a device is drawn as. Only "part" is not a state of the overview's map: some of the device is claimed.
LOOKS: Final = ("free", "part", "busy", "idle", "drain", "bad", "na")


class PlacedNode(msgspec.Struct, frozen=True):
    """A node with its accelerators, or its CPUs if it has no others; ``gbps`` is the bandwidth of its link in Gbit/s,
    null if unknown."""

    name: str
    state: str
    gbps: float | None
    devices: list[SeenDevice]


class Domain(msgspec.Struct, frozen=True):
    """Nodes that stand together. ``name`` is the label that they share, such as ``switch=s1``, or their pools;
    ``above`` are the labels around it, such as ``zone=a / rack=r1``."""

    name: str
    above: str
    nodes: list[PlacedNode]


class DomainLink(msgspec.Struct, frozen=True):
    """Measured links inside a domain, or from one domain (or site, where they are in two) to another.

    ``slowest`` and ``usual`` (the median) are in Gbit/s; ``from_node`` and ``to_node`` have the slowest one.
    """

    source: str
    target: str
    pairs: int
    slowest: float
    usual: float
    from_node: str
    to_node: str
    at: datetime


class Domains(msgspec.Struct, frozen=True):
    """The domains of at most 1,024 of ``count`` nodes, and at most 100 of the links measured among these, slowest
    first."""

    domains: list[Domain]
    count: int
    links: list[DomainLink]


def look(device: SeenDevice) -> str:
    """What the device is drawn as, one of ``LOOKS``."""
    if mark := device_map.mark_of(device, "allocated"):
        return mark
    if device.state == "held_idle":
        return "idle"
    return "busy" if device.milli >= device.capacity else "part"


def found(pool: str = "", by: str = "") -> Domains:
    """The nodes of ``pool``, or all, by domain, or ``by`` pool; everybody sees them."""
    chosen = rows.Node.objects.filter(pools__name=pool) if pool else rows.Node.objects.all()
    nodes = list(chosen.prefetch_related("pools")[:MOST_NODES])
    devices = _devices(nodes)
    groups: dict[tuple[str, str], list[PlacedNode]] = defaultdict(list)
    for node in nodes:
        seen = Seen(str(node.id), node.name, NodeState(node.state), (), (), node.labels, fetch_gbps=node.fetch_gbps)
        gbps = topology.bandwidth(seen) or None
        pools = ", ".join(sorted((pool.name for pool in node.pools.all()), key=natural_key))
        place = ("", pools) if by == "pool" else _place(seen, pools)
        groups[place].append(PlacedNode(node.name, node.state, gbps, devices.get(node.id, [])))
    order = sorted(groups, key=lambda key: (not key[0], natural_key(key[0]), natural_key(key[1])))
    found = [Domain(name, above, groups[above, name]) for above, name in order]
    return Domains(found, _count(chosen, nodes), _links(nodes))


def _links(nodes: list[rows.Node]) -> list[DomainLink]:
    """What was measured among these nodes, by the domains at both ends."""
    by_id = {node.id: node for node in nodes}
    rows_ = rows.NodeLink.objects.filter(source__in=by_id, target__in=by_id).order_by("gbps", "id")
    pairs: dict[tuple[str, str], list[rows.NodeLink]] = defaultdict(list)
    for link in rows_:
        pairs[_ends(by_id[link.source_id], by_id[link.target_id])].append(link)
    found = [
        DomainLink(
            source=source,
            target=target,
            pairs=len(links),
            slowest=links[0].gbps,
            usual=links[len(links) // 2].gbps,
            from_node=by_id[links[0].source_id].name,
            to_node=by_id[links[0].target_id].name,
            at=max(link.at for link in links),
        )
        for (source, target), links in pairs.items()
    ]
    return sorted(found, key=lambda one: (one.slowest, natural_key(one.source), natural_key(one.target)))[:MOST_LINKS]


def _ends(source: rows.Node, target: rows.Node) -> tuple[str, str]:
    """The names of the domains of two nodes; of their sites, where these are two."""
    sites = (source.labels.get(SITE), target.labels.get(SITE))
    if sites[0] and sites[1] and sites[0] != sites[1]:
        return f"{SITE}={sites[0]}", f"{SITE}={sites[1]}"
    seen = [Seen(str(one.id), one.name, NodeState(one.state), (), (), one.labels) for one in (source, target)]
    return topology.domain(seen[0]), topology.domain(seen[1])


def _count(chosen: QuerySet[rows.Node], nodes: list[rows.Node]) -> int:
    return chosen.count() if len(nodes) == MOST_NODES else len(nodes)


def _place(seen: Seen, pools: str) -> tuple[str, str]:
    """The labels around the node's domain, the widest first, and the domain; of a node without labels its pools."""
    domain = topology.domain(seen)
    if not any(label in seen.labels for label in topology.LABELS):
        return "", pools
    around = [f"{label}={seen.labels[label]}" for label in reversed(topology.LABELS) if label in seen.labels]
    return " / ".join(label for label in around if label != domain), domain


def _devices(nodes: list[rows.Node]) -> Mapping[uuid.UUID, list[SeenDevice]]:
    ids = {node.name: node.id for node in nodes}
    seen = device_map.seen([(node.id, node.name, node.state) for node in nodes], held_idle_lately(), is_measured=False)
    by_node: dict[uuid.UUID, list[SeenDevice]] = defaultdict(list)
    for device in sorted(seen, key=lambda one: (one.kind, one.index)):
        by_node[ids[device.node]].append(device)
    return {
        node: [device for device in devices if device.kind != "cpu"] or devices for node, devices in by_node.items()
    }
