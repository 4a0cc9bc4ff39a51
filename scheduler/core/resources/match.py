"""Which devices could meet an ask, and which of them to take on one node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

from scheduler.core.model.kinds import CPU, is_accelerator
from scheduler.core.model.lifecycle import USABLE_HEALTH
from scheduler.core.model.partitions import WHOLE, Layout, Partition, PartitionProfile, place_for, tables
from scheduler.core.model.types import Alternative, Ask, Device, Grant, Mode, Node

SMALLEST: Final = "smallest"


class Spare(Protocol):
    """The free capacity of each device."""

    def free(self, device: str) -> tuple[int, int]:
        """Free milli and bytes."""

    def layout(self, device: str) -> Layout:
        """What it is divided into."""


@dataclass(frozen=True, slots=True)
class Empty:
    """A node without claims."""

    node: Node

    def free(self, device: str) -> tuple[int, int]:
        return next((one.capacity_milli, one.memory_bytes) for one in self.node.devices if one.id == device)

    def layout(self, device: str) -> Layout:
        return WHOLE


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could meet all asks of one alternative if it were empty: for each ask, the devices that match."""

    node: Node
    matches: tuple[tuple[Device, ...], ...]


def is_avoided(node: Node, avoid: Collection[str]) -> bool:
    """Whether one of these names or labels (``rack=r2``) is the node's."""
    return node.id in avoid or node.name in avoid or is_labelled(node, avoid)


def is_labelled(node: Node, words: Collection[str]) -> bool:
    """Whether the node has one of these labels (``rack=r2``)."""
    return any(f"{label}={value}" in words for label, value in node.labels.items())


def is_wanted(node: Node, only: Collection[Collection[str]]) -> bool:
    """Whether the node has one of each group: its name or one of its :func:`label_words`."""
    if not only:
        return True
    has = label_words(node) | {node.id, node.name}
    return all(not has.isdisjoint(group) for group in only)


def label_words(node: Node) -> frozenset[str]:
    """By what labels a node may be wanted: a label (``rack=r2``), a label of any value (``ib=*``), any label of a value
    (``*=a100``)."""
    return frozenset(
        word for label, value in node.labels.items() for word in (f"{label}={value}", f"{label}=*", f"*={value}")
    )


def has_mounts(node: Node, mounts: Collection[str]) -> bool:
    """Whether the node has all of these folders for stages: each lies in one that its operator declared."""
    return all(any(f"{path}/".startswith(f"{root.rstrip('/')}/") for root in node.mounts) for path in mounts)


def matches(ask: Ask, device: Device) -> bool:
    """Whether the device is of the right sort and large enough, whatever its health and use."""
    is_divided = device.made is not None or not device.whole
    if profile_of(ask, device) is None if ask.partition else is_divided:
        return False
    return (
        ask.kind == device.kind
        and (ask.milli <= device.capacity_milli or bool(ask.partition))
        and ask.memory_bytes <= device.memory_bytes
        and (not ask.vendor or ask.vendor.lower() == device.vendor.lower())
        and (not ask.model or ask.model.lower() in device.model.lower())
        and (not ask.sharing or _is_held(ask, device))
    )


def _is_held(ask: Ask, device: Device) -> bool:
    """Whether the memory of the ask would be isolated on the device as strictly as it requires.

    Partitions and whole devices are isolated by the hardware; shares by the agent at best.
    """
    is_share = not ask.partition and share_of(ask, device)[0] < device.capacity_milli
    return not is_share or (ask.sharing == "soft" and device.sharing in ("soft", "hard"))


def profile_of(ask: Ask, device: Device) -> PartitionProfile | None:
    """The kind of partition of this device that meets the ask, if it may be divided so."""
    made = None if device.made is None else frozenset(part.profile for part in device.made)
    return _profile_of(ask.partition, ask.milli, ask.memory_bytes, device.partitions, made)


def partition_of(ask: Ask, device: Device) -> str:
    """The name of that kind; empty where no partition is asked, or none would do."""
    profile = profile_of(ask, device) if ask.partition else None
    return profile.name if profile is not None else ""


@cache
def _profile_of(
    name: str, milli: int, memory_bytes: int, table: str, made: frozenset[str] | None
) -> PartitionProfile | None:
    known = tables().get(table)
    if known is None:
        return None
    found = known.profiles.get((known.smallest(milli, memory_bytes, made) or "") if name == SMALLEST else name)
    is_made = made is None or (found is not None and found.name in made)
    return found if found and is_made and found.memory_bytes >= memory_bytes else None


def share_of(ask: Ask, device: Device) -> tuple[int, int]:
    """How much of a matching device a grant takes: milli and bytes. A device that may be divided, but not for this ask,
    goes whole, as one of mode *exclusive* does."""
    if ask.partition:
        profile = profile_of(ask, device)
        assert profile is not None, "the device was found to match"
        return profile.milli, device.memory_bytes * profile.memory_milli // 1000
    is_whole = device.mode is Mode.EXCLUSIVE or bool(device.partitions)
    return device.capacity_milli if is_whole else ask.milli, ask.memory_bytes


def candidate(alternative: Alternative, node: Node, *, healthy: bool = True) -> Candidate | None:
    """The node as a candidate, or ``None`` where it could not meet the asks even when empty. Unless it need not be
    ``healthy``, its devices work, and it can run the image."""
    if healthy and alternative.image and not node.runs_images:
        return None
    found = tuple(
        tuple(d for d in node.devices if matches(ask, d) and (not healthy or d.health in USABLE_HEALTH))
        for ask in alternative.asks
    )
    if any(len(devices) < ask.count for ask, devices in zip(alternative.asks, found, strict=True)):
        return None
    place = Candidate(node, found)
    if are_disjoint(alternative.asks):
        return place
    return place if grant(alternative.asks, place, Empty(node)) is not None else None


def are_disjoint(asks: Sequence[Ask]) -> bool:
    """Whether no two asks can want the same device, and sums alone say what fits."""
    return len({ask.kind for ask in asks}) == len(asks) and not any(ask.partition for ask in asks)


def grant(asks: Sequence[Ask], place: Candidate, spare: Spare) -> tuple[Grant, ...] | None:
    """Shares of this node's devices that meet all asks, or ``None``.

    Best fit: the device that has least to spare is taken first, so that whole devices stay whole, and one that warns
    last. Several accelerators come from one link group where one has so many (the one with fewest more, so that large
    ones stay whole), and there from one NUMA node where one has so many; CPU cores come from the NUMA nodes of the
    accelerators where these have them. A device of mode *exclusive* is granted whole; a partition begins where its
    hardware allows it and most others still fit.
    """
    grants: dict[int, list[Grant]] = {}
    taken: dict[str, tuple[int, int]] = {}
    numas: set[int | None] = set()
    # The most particular ask chooses first; CPU cores follow the accelerators.
    order = range(len(asks)) if len(asks) == 1 else sorted(range(len(asks)), key=lambda i: _breadth(asks[i]))
    for at in order:
        ask = asks[at]
        fitting: list[tuple[bool, tuple[bool, ...], int, int, str, Grant, Device]] = []
        for device in place.matches[at]:
            milli, memory = spare.free(device.id)
            if device.id in taken:
                milli, memory = milli - taken[device.id][0], memory - taken[device.id][1]
            need, bytes_ = share_of(ask, device)
            if milli >= need and memory >= bytes_:
                part = _part(ask, device, spare.layout(device.id)) if ask.partition else None
                if ask.partition and part is None:
                    continue
                near = ask.kind != CPU or not numas or device.numa in numas
                given = Grant(device.id, need, bytes_, part)
                fitting.append((device.warned, (not near,), milli, device.index, device.id, given, device))
        if len(fitting) < ask.count:
            return None
        if ask.count > 1 and is_accelerator(ask.kind):
            home = _home([fit[-1] for fit in fitting if not fit[0]], ask.count)
            fitting = [(fit[0], _abroad(fit[-1], *home), *fit[2:]) for fit in fitting]
        fitting.sort(key=lambda fit: fit[:5])
        for *_, given, device in fitting[: ask.count]:
            grants.setdefault(at, []).append(given)
            before = taken.get(device.id, (0, 0))
            taken[device.id] = (before[0] + given.milli, before[1] + given.memory_bytes)
            numas.add(device.numa)
    return tuple(one for at in range(len(asks)) for one in grants.get(at, ()))


def _part(ask: Ask, device: Device, layout: Layout) -> Partition | None:
    """One more partition on a device, where there is a place for it."""
    profile = profile_of(ask, device)
    start = place_for(device.partitions, device.made, layout, profile.name) if profile else None
    return Partition(start, profile.name) if profile and start is not None else None


def _home(devices: Sequence[Device], count: int) -> tuple[int | None, int | None]:
    """The link group that alone has ``count`` of the devices and fewest more, and among its devices (among all where
    there is no such group) the NUMA node of which the same is true; ``None`` where there is none."""
    group = _smallest([device.group for device in devices], count)
    return group, _smallest([device.numa for device in devices if group is None or device.group == group], count)


def _smallest(places: Sequence[int | None], count: int) -> int | None:
    """Of the places that come ``count`` times or more, the one that comes least often; the lowest of equals."""
    sizes = {place: places.count(place) for place in places if place is not None}
    return min((place for place in sizes if sizes[place] >= count), key=lambda one: (sizes[one], one), default=None)


def _abroad(device: Device, group: int | None, numa: int | None) -> tuple[bool, bool]:
    """Whether a device stands outside the link group and the NUMA node that were chosen."""
    return group is not None and device.group != group, numa is not None and device.numa != numa


def _breadth(ask: Ask) -> tuple[bool, bool, bool, bool, int]:
    return not is_accelerator(ask.kind), ask.kind != CPU, not ask.model, not ask.vendor, -ask.milli
