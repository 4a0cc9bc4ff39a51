"""The effect of a node's load on its stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scheduler.core.model.types import Grant, Placement
from scheduler.core.world.read_only import ReadOnlyWorld

# So much beyond its measure a node may have to do without being shunned: one that is merely full reaches that too.
SLACK: Final = 0.25


def share(grants: Iterable[Grant], node: str, world: ReadOnlyWorld) -> float:
    """Return the share of the cores of ``node`` in these grants: the load that their holder adds."""
    devices = world.ledger.devices
    size = sum(device.capacity_milli for device in world.nodes[node].devices if device.kind == "cpu")
    held = sum(one.milli for one in grants if one.device in devices and devices[one.device].kind == "cpu")
    return held / max(size, 1)


def slowdown(placement: Placement, world: ReadOnlyWorld) -> float:
    """How many times longer than on calm nodes a stage would run that started there now: 1 or more."""
    ranks = zip(placement.nodes, placement.grants, strict=True)
    loads = (world.nodes[name].load + share(rank, name, world) for name, rank in ranks if world.nodes[name].load)
    return max(1.0, max(loads, default=0.0) - SLACK)
