"""Validates the device links that agents report, and derives link groups from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from agents import protocol
from controlplane.clauses import Told, clause
from controlplane.clauses import told as sentence_of

Links = Sequence[Mapping[str, Any]]
"""As :class:`agents.protocol.Link` is stored: ``peer``, ``type`` and perhaps ``gbps``."""

# GB/s of one link or one bundle of links. The fastest at present (NVLink 5) has 1,800.
MOST_GBPS: Final = 20_000.0
# Link types through the host, as in `nvidia-smi topo`; the first two stay on PCIe switches. Every other type (NVLINK,
# XGMI, HCCS, ICI, ...) is faster.
SWITCHED: Final = frozenset({"PIX", "PXB"})
THROUGH_HOST: Final = frozenset({"PCIE", "PHB", "NODE", "SYS"})


def fault(device: protocol.Device) -> Told | None:
    """Return what is implausible about the reported links of a device; None if nothing is."""
    for link in device.links:
        name = f"{device.kind}-{device.index}"
        if link.peer == device.uuid:
            return sentence_of(clause("LinkToItself", device=name))
        if link.gbps is not None and link.gbps > MOST_GBPS:
            most = sentence_of(clause("AtMost", most=f"{MOST_GBPS:g}"))
            where = f"links[{link.peer}] gbps"
            return sentence_of(clause("DeviceFieldIs", device=name, field=where, value=f"{link.gbps:g}", fault=most))
    return None


def groups(devices: Iterable[tuple[str, Links]]) -> dict[str, int]:
    """Return the link group of each device that is in one; ``devices`` are pairs of uuid and links.

    A group has two or more devices that are connected, directly or through each other or a switch, by links that are
    faster than the path through the host; devices without those are joined by a shared PCIe switch. Groups are numbered
    in the order of their first devices.
    """
    told = list(devices)
    found = _joined(told, lambda kind: kind not in SWITCHED | THROUGH_HOST)
    rest = [(uuid, links) for uuid, links in told if uuid not in found]
    found |= _joined(rest, lambda kind: kind in SWITCHED)
    numbers: dict[str, int] = {}
    return {uuid: numbers.setdefault(found[uuid], len(numbers)) for uuid, _ in told if uuid in found}


def _joined(devices: list[tuple[str, Links]], counts: Callable[[str], bool]) -> dict[str, str]:
    """Return the representative of the group of each device that shares one with another; ``counts`` tells which link
    types join devices.

    The peer of a link may be a device or a common component, such as a switch.
    """
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while (over := above.setdefault(name, name)) != name:
            above[name] = name = above.setdefault(over, over)
        return name

    for uuid, links in devices:
        for link in links:
            if counts(link["type"]) and link["peer"] != "host":
                above[top(link["peer"])] = top(uuid)
    found = {uuid: top(uuid) for uuid, _ in devices}
    sizes = Counter(found.values())
    return {uuid: of for uuid, of in found.items() if sizes[of] > 1}
