"""What a node has as a whole beside its devices, as the engine keeps account of it: disk space and bandwidths.

Disk space is measured by the agent. Bandwidth of the disk is what the label ``disk-mbps`` of the node says, that of the
network what ``link-gbps`` says or else the speed of its fastest interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from agents.protocol import Interface
from scheduler.core.model.kinds import DISK, MOST_MBPS, NETWORK, amount_id
from scheduler.core.model.types import Device
from scheduler.core.resources.topology import BANDWIDTH

DISK_BANDWIDTH: Final = "disk-mbps"
MBPS_PER_GBPS: Final = 125.0
# Behind all devices in the order of their indices.
_LAST: Final = 1 << 20
# Sizes are rounded down to these, so that nodes with the same disks are alike.
_GIB: Final = 1 << 30
# The feature of an engine's disk that tells the size of the file system, whatever lies on it now.
TOTAL: Final = "total_bytes"


def devices(
    node: str, labels: Mapping[str, str], disk_bytes: int, total_bytes: int, network_mbps: int
) -> tuple[Device, ...]:
    """Return these amounts of a node in the engine's form; what it has none of is absent."""
    found = []
    disk_mbps = _declared(labels, DISK_BANDWIDTH)
    if total_bytes or disk_mbps:
        found.append(
            Device(
                amount_id(node, DISK), node, DISK, "", "", _LAST, disk_bytes // _GIB * _GIB, disk_mbps,
                features={TOTAL: float(total_bytes // _GIB * _GIB)},
            )
        )  # fmt: skip
    mbps = _declared(labels, BANDWIDTH, MBPS_PER_GBPS) or min(network_mbps, MOST_MBPS)
    if mbps:
        found.append(Device(amount_id(node, NETWORK), node, NETWORK, "", "", _LAST + 1, 0, mbps))
    return tuple(found)


def emptied(device: Device) -> Device:
    """Return an engine's device; a disk with all of its space free."""
    if device.kind != DISK:
        return device
    return replace(device, memory_bytes=int(device.features.get(TOTAL, 0.0)))


def fastest_mbps(interfaces: Iterable[Interface]) -> int:
    """Return the MB/s of the fastest interface that is up; 0 if none tells its speed."""
    speeds = [one.bits_per_s for one in interfaces if one.is_up and one.bits_per_s]
    return min(max(speeds, default=0) // 8_000_000, MOST_MBPS)


def _declared(labels: Mapping[str, str], name: str, unit: float = 1.0) -> int:
    """Return the MB/s that a label declares in units of so many MB/s; 0 if it declares none, or an absurd number."""
    try:
        mbps = float(labels.get(name, 0.0)) * unit
    except ValueError:
        return 0
    return int(mbps) if 1.0 <= mbps <= MOST_MBPS else 0
