"""Kinds of devices, and amounts of a node that are not devices.

A node has disk space, disk bandwidth and network bandwidth as a whole. The engine keeps account of them as it does of
devices, so a snapshot has one :class:`~scheduler.core.model.types.Device` for each: of kind *disk*, whose memory is the
space for scratch files and whose thousandths are MB/s, and of kind *network*, whose thousandths are MB/s. Nobody is
charged for them, no quota names them, and they count as no devices anywhere. Their ids are those of
:func:`amount_id`.
"""

from __future__ import annotations

from typing import Final

CPU: Final = "cpu"
DISK: Final = "disk"
NETWORK: Final = "network"
AMOUNTS: Final = frozenset({DISK, NETWORK})
_ENDINGS: Final = tuple(f"/{kind}" for kind in sorted(AMOUNTS))
# No node has more bandwidth, in MB/s, or a slip of the pen would be planned with.
MOST_MBPS: Final = 10_000_000


def amount_id(node: str, kind: str) -> str:
    """Return the id under which the engine keeps account of an amount of this node."""
    return f"{node}/{kind}"


def is_amount(device: str) -> bool:
    """Whether this id of a device is that of an amount of a node."""
    return device.endswith(_ENDINGS)


def is_accelerator(kind: str) -> bool:
    """Whether devices of this kind are neither CPUs nor amounts of a node."""
    return kind != CPU and kind not in AMOUNTS


def is_device(kind: str) -> bool:
    """Whether devices of this kind are devices, and not amounts of a node."""
    return kind not in AMOUNTS
