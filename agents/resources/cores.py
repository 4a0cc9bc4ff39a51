"""Assigns cores to parts: those that they claim, and idle ones on loan while a part waits for input.

Pure. A CPU device is one NUMA node, so a part stays on the cores of the node that it claims. Whole cores belong to one
part; claims of less than a core, and the fractions beyond whole cores, share the rest. Unclaimed cores are lent to
parts that want more, and are taken back when they are claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agents.protocol import Inventory

WHOLE_CORE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class CoreClaim:
    """A part's claim on one CPU device. ``held`` are the cores it has now, which it keeps if possible."""

    part: str
    device: str
    milli: int
    held: tuple[int, ...] = ()
    wants_more: bool = False


def known_cores(inventory: Inventory | None) -> dict[str, list[int]]:
    """Return the cores of each CPU device by the kernel's numbers, as its probe found them; simulated ones have
    none."""
    found = inventory.devices if inventory else []
    listed = {each.uuid: each.attributes.get("cores", "") for each in found if each.kind == "cpu"}
    return {uuid: [int(core) for core in cores.split(",")] for uuid, cores in listed.items() if cores}


def allot(cores: Mapping[str, Sequence[int]], asks: Iterable[CoreClaim]) -> dict[str, tuple[int, ...]]:
    """Return the cores of each part, ascending. A part whose devices are all unknown is left out, and may run anywhere.

    ``asks`` are in the order of arrival: where more is claimed than there is, the later ones share.
    """
    found: dict[str, set[int]] = {}
    by_device: dict[str, list[CoreClaim]] = {}
    for ask in asks:
        by_device.setdefault(ask.device, []).append(ask)
    for device, mine in by_device.items():
        if cores.get(device):
            for part, set_ in _allot(sorted(cores[device]), mine).items():
                found.setdefault(part, set()).update(set_)
    return {part: tuple(sorted(set_)) for part, set_ in found.items()}


def _allot(cores: Sequence[int], asks: Sequence[CoreClaim]) -> dict[str, set[int]]:
    free = list(cores)
    own: dict[str, set[int]] = {}
    for ask in asks:  # first the cores that they have, so that no part is moved for a new one
        wanted = ask.milli // WHOLE_CORE_MILLI
        own[ask.part] = {core for core in ask.held if core in free}
        if len(own[ask.part]) > wanted:
            own[ask.part] = set(sorted(own[ask.part])[:wanted])
        free = [core for core in free if core not in own[ask.part]]
    for ask in asks:
        missing = ask.milli // WHOLE_CORE_MILLI - len(own[ask.part])
        own[ask.part] |= set(free[:missing])
        free = free[max(0, missing) :]
    sharing = [ask for ask in asks if len(own[ask.part]) * WHOLE_CORE_MILLI < ask.milli]
    if sharing:
        pool = set(free or cores)
        return {part: set_ | pool if any(ask.part == part for ask in sharing) else set_ for part, set_ in own.items()}
    return _lend(free, asks, own)


def _lend(free: Sequence[int], asks: Sequence[CoreClaim], own: dict[str, set[int]]) -> dict[str, set[int]]:
    """Deal idle cores in turn to parts that want more; a part keeps a core on loan before another gets it."""
    wanting = [ask for ask in asks if ask.wants_more]
    idle = list(free)
    lent: dict[str, set[int]] = {ask.part: set() for ask in wanting}
    while idle and wanting:
        for ask in wanting:
            if idle:
                core = next((core for core in idle if core in ask.held), idle[0])
                idle.remove(core)
                lent[ask.part].add(core)
    return {part: set_ | lent.get(part, set()) for part, set_ in own.items()}
