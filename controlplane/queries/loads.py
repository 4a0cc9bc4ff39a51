"""The load of groups of devices: one metric by pool, node, kind, model or project."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, Literal
from uuid import UUID

import msgspec
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.fleet.models import Node
from controlplane.jobs.held_idle import held_idle_lately
from controlplane.natural import natural_key
from controlplane.queries import device_map
from controlplane.queries.device_map import UNITS, Metric, SeenDevice
from controlplane.queries.shared import shared

Group = Literal["node", "pool", "kind", "model", "project"]
GROUPS: Final[tuple[Group, ...]] = ("node", "pool", "kind", "model", "project")


class GroupLoad(msgspec.Struct, frozen=True):
    """The devices of one group. ``mean``, ``least`` and ``most`` are over the ``known`` of them with a value, and null
    if there are none; ``allocated`` is the sum of their claimed shares."""

    name: str
    kind: str
    devices: int
    allocated: float
    known: int
    mean: float | None
    least: float | None
    most: float | None


class Loads(msgspec.Struct, frozen=True):
    """One metric in ``unit`` by groups; devices of different kinds are never added up. A device of several pools counts
    in each; by project it counts where most of it is held, under an empty name if you may not see by whom."""

    metric: str
    by: str
    unit: str
    results: list[GroupLoad]


def loads(user: User, metric: Metric, by: Group) -> Loads:
    """The loads as this user may see them; reused for a moment where they are slow."""
    return shared(f"loads {metric} {by}", user, lambda: found(user, metric, by), Loads)


def found(user: User, metric: Metric, by: Group) -> Loads:
    """Read the loads as this user may see them."""
    devices = device_map.seen(device_map.nodes_now(), held_idle_lately())
    groups: dict[tuple[str, str], list[SeenDevice]] = defaultdict(list)
    for names, device in _named(user, by, devices):
        for name in names:
            groups[name, device.kind].append(device)
    order = sorted(groups, key=lambda key: (key[1] == "cpu", not key[0], natural_key(key[0]), key[1]))
    return Loads(metric, by, UNITS.get(metric, "%"), [_load(*key, groups[key], metric) for key in order])


def _named(user: User, by: Group, devices: Iterable[SeenDevice]) -> Iterable[tuple[list[str], SeenDevice]]:
    """Each device with the names of its groups."""
    pools: Mapping[str, list[str]] = defaultdict(list)
    held: Mapping[UUID, int] = {}
    projects: Mapping[int, str] = {}
    if by == "pool":
        for node, pool in Node.objects.filter(pools__isnull=False).values_list("name", "pools__name"):
            pools[node].append(pool)
    elif by == "project":
        held, projects = device_map.holders(user)
    for device in devices:
        match by:
            case "pool":
                yield pools.get(device.node, []), device
            case "project":
                yield [projects.get(held[device.id], "")] if device.id in held else [], device
            case "node":
                yield [device.node], device
            case "kind":
                yield [device.kind], device
            case "model":
                yield [device.model or device.kind], device


def _load(name: str, kind: str, devices: list[SeenDevice], metric: Metric) -> GroupLoad:
    values = [value for device in devices if (value := device.value(metric)) is not None]
    return GroupLoad(
        name=name,
        kind=kind,
        devices=len(devices),
        allocated=round(sum(device.milli / device.capacity for device in devices if device.capacity), 3),
        known=len(values),
        mean=round(sum(values) / len(values), 2) if values else None,
        least=round(min(values), 2) if values else None,
        most=round(max(values), 2) if values else None,
    )


def title(metric: Metric) -> str:
    """The metric in the reader's language."""
    return {
        "utilisation": _("Utilisation"),
        "allocated": _("Allocated"),
        "memory": _("Memory"),
        "power": _("Power"),
        "temperature": _("Temperature"),
    }[metric]


def group_title(by: Group) -> str:
    """The group in the reader's language."""
    return {"node": _("Node"), "pool": _("Pool"), "kind": _("Kind"), "model": _("Model"), "project": _("Project")}[by]
