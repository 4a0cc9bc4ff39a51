"""Hosts of nodes beside their devices: network interfaces, disks, file systems, and pressure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from django.utils import timezone

from controlplane.fleet import models as rows

# An agent reports its host every ten seconds; older measurements do not describe the present.
FRESH = timedelta(seconds=60)


class Interface(msgspec.Struct, frozen=True):
    """A network interface. ``bits_per_s`` is the speed of its link; null if unknown."""

    name: str
    bits_per_s: int | None
    is_up: bool
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None


class Disk(msgspec.Struct, frozen=True):
    """A disk, with the bytes read from it and written to it."""

    name: str
    model: str
    size_bytes: int
    is_rotating: bool
    read_bytes_per_s: float | None
    written_bytes_per_s: float | None


class FileSystem(msgspec.Struct, frozen=True):
    """A mounted file system. Sizes are null for a remote one, which is never queried because that may hang."""

    mount: str
    type: str
    size_bytes: int | None
    free_bytes: int | None


class Host(msgspec.Struct, frozen=True):
    """Measurements of a host. What was not measured within the last minute is null.

    ``pressure`` is per cent of ten seconds in which some or all tasks waited, such as ``memory_full``.
    """

    at: datetime | None
    pressure: dict[str, float]
    interfaces: list[Interface]
    disks: list[Disk]
    file_systems: list[FileSystem]


def shown(node: rows.Node) -> Host | None:
    """The host of this node; None if it has not reported it."""
    host = rows.Host.objects.filter(node=node).first()
    if host is None:
        return None
    is_fresh = host.at is not None and host.at > timezone.now() - FRESH
    per_s = host.per_s if is_fresh else {}
    received, sent, read, written = (per_s.get(what, {}) for what in ("received", "sent", "read", "written"))
    free = host.free_bytes if is_fresh else {}
    return Host(
        at=host.at,
        pressure=host.pressure if is_fresh else {},
        interfaces=[
            Interface(
                name=each["name"],
                bits_per_s=each.get("bits_per_s"),
                is_up=each.get("is_up", False),
                received_bytes_per_s=received.get(each["name"]),
                sent_bytes_per_s=sent.get(each["name"]),
            )
            for each in host.interfaces
        ],
        disks=[
            Disk(
                name=each["name"],
                model=each.get("model", ""),
                size_bytes=each["size_bytes"],
                is_rotating=each.get("is_rotating", False),
                read_bytes_per_s=read.get(each["name"]),
                written_bytes_per_s=written.get(each["name"]),
            )
            for each in host.disks
        ],
        file_systems=[
            FileSystem(each["mount"], each["type"], each.get("size_bytes"), free.get(each["mount"]))
            for each in host.file_systems
        ],
    )
