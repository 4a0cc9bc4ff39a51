"""Shapes: the machines that a provider can bring, as an operator describes them, and as the engine sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from controlplane.providers import typed
from scheduler.core.model.lifecycle import NodeState
from scheduler.core.model.types import Device, Node

MOST: Final = 20
MOST_DEVICES: Final = 16
GIB: Final = 2**30
KEYS: Final[Mapping[str, typed.Check]] = {
    "name": typed.is_text(typed.NAME),
    "cpus": typed.is_whole(1, 4_096),
    "memory_gib": typed.is_number(0.25, 65_536),
    "price": typed.is_number(0, 1e6),
    "devices": lambda value: isinstance(value, list) and len(value) <= MOST_DEVICES,
}
DEVICE_KEYS: Final[Mapping[str, typed.Check]] = {
    "kind": typed.is_text(typed.NAME),
    "vendor": typed.is_text(typed.NAME),
    "model": lambda value: isinstance(value, str) and value.isprintable() and len(value) <= 120,
    "count": typed.is_whole(1, 64),
    "memory_gib": typed.is_number(0.25, 4_096),
}


def valid(value: object, more: Mapping[str, typed.Check] | None = None) -> None:
    """Raise ValidationError unless this is a list of shapes; ``more`` are the keys that one kind of provider adds."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST:
        raise ValidationError(_("name 1 to %(most)s shapes"), params={"most": MOST})
    for shape in value:
        typed.checked("shapes", shape, {**KEYS, **(more or {})}, ("name", "cpus", "memory_gib"))
        for device in shape.get("devices", ()):
            typed.checked("devices", device, DEVICE_KEYS, ("kind",))
    if len({shape["name"] for shape in value}) < len(value):
        raise ValidationError(_("two shapes have one name"))


def as_node(shape: Mapping[str, Any], pool: str, number: int = 0) -> Node:
    """Return the node that this shape would be, as the scheduling engine sees nodes."""
    name = f"shape:{shape['name']}:{number}"
    cpu = Device(
        f"{name}:cpu", name, "cpu", "", "", 0, int(shape["memory_gib"] * GIB), capacity_milli=shape["cpus"] * 1000
    )
    devices = [cpu]
    for asked in shape.get("devices", ()):
        for _i in range(asked.get("count", 1)):
            at = len(devices)
            memory = int(asked.get("memory_gib", 0) * GIB)
            vendor, model = asked.get("vendor", ""), asked.get("model", "")
            devices.append(Device(f"{name}:{at}", name, asked["kind"], vendor, model, at, memory))
    return Node(name, name, NodeState.READY, (pool,), tuple(devices))


def nodes(shapes: Sequence[Mapping[str, Any]], pool: str, most: int) -> list[Node]:
    """Return ``most`` nodes of each shape."""
    return [as_node(shape, pool, number) for shape in shapes for number in range(most)]
