"""Which devices could meet an ask, and which of them to take on one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.core.lifecycle import USABLE_HEALTH
from scheduler.core.types import Alternative, Ask, Device, Grant, Mode, Node

Free = Callable[[str], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could meet all asks of one alternative if it were empty: for each ask, the devices that match."""

    node: Node
    matches: tuple[tuple[Device, ...], ...]


def matches(ask: Ask, device: Device) -> bool:
    """Whether the device is of the right sort and large enough, whatever its health and use."""
    return (
        ask.kind == device.kind
        and ask.milli <= device.capacity_milli
        and ask.memory_bytes <= device.memory_bytes
        and (not ask.vendor or ask.vendor.lower() == device.vendor.lower())
        and (not ask.model or ask.model.lower() in device.model.lower())
    )


def candidate(alternative: Alternative, node: Node, *, healthy: bool = True) -> Candidate | None:
    """The node as a candidate, or ``None`` where it could not meet the asks even when empty."""
    found = tuple(
        tuple(d for d in node.devices if matches(ask, d) and (not healthy or d.health in USABLE_HEALTH))
        for ask in alternative.asks
    )
    if any(len(devices) < ask.count for ask, devices in zip(alternative.asks, found, strict=True)):
        return None
    place = Candidate(node, found)
    if len({ask.kind for ask in alternative.asks}) == len(alternative.asks):
        return place  # no two asks want the same device
    size = {device.id: (device.capacity_milli, device.memory_bytes) for device in node.devices}
    return place if grant(alternative.asks, place, size.__getitem__) is not None else None


def grant(asks: Sequence[Ask], place: Candidate, free: Free) -> tuple[Grant, ...] | None:
    """Shares of this node's devices that meet all asks, or ``None``.

    Best fit: the device that has least to spare is taken first, so that whole devices stay whole; CPU cores come from
    the NUMA nodes of the accelerators where these have them. A device of mode *exclusive* is granted whole.
    """
    grants: dict[int, list[Grant]] = {}
    taken: dict[str, tuple[int, int]] = {}
    numas: set[int | None] = set()
    # The most particular ask chooses first; CPU cores follow the accelerators.
    order = range(len(asks)) if len(asks) == 1 else sorted(range(len(asks)), key=lambda i: _breadth(asks[i]))
    for at in order:
        ask = asks[at]
        fitting = []
        for device in place.matches[at]:
            milli, memory = free(device.id)
            if device.id in taken:
                milli, memory = milli - taken[device.id][0], memory - taken[device.id][1]
            need = device.capacity_milli if device.mode is Mode.EXCLUSIVE else ask.milli
            if milli >= need and memory >= ask.memory_bytes:
                near = ask.kind != "cpu" or not numas or device.numa in numas
                fitting.append((not near, milli, device.index, device.id, need, device.numa))
        if len(fitting) < ask.count:
            return None
        fitting.sort(key=lambda fit: fit[:4])
        for _, _, _, device_id, need, numa in fitting[: ask.count]:
            grants.setdefault(at, []).append(Grant(device_id, need, ask.memory_bytes))
            before = taken.get(device_id, (0, 0))
            taken[device_id] = (before[0] + need, before[1] + ask.memory_bytes)
            numas.add(numa)
    return tuple(one for at in range(len(asks)) for one in grants.get(at, ()))


def _breadth(ask: Ask) -> tuple[bool, bool, bool, int]:
    return ask.kind == "cpu", not ask.model, not ask.vendor, -ask.milli
