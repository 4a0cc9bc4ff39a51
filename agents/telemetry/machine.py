"""A host beside its devices: network interfaces, disks, file systems, and pressure.

All of it is read from files of the kernel. A remote file system is named but never queried, because that may hang.
"""

from __future__ import annotations

import os
from pathlib import Path

from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import Disk, FileSystem, HostSample, Interface

_SECTOR_BYTES = 512
_REMOTE = ("nfs", "nfs4", "cifs", "lustre", "ceph", "beegfs", "gpfs", "glusterfs", "fuse.sshfs", "fuse.s3fs")
# Images, which nobody writes to and which are therefore always full.
_IMAGES = ("squashfs", "erofs", "iso9660", "cramfs")
_PASSING = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
# Thresholds for a note: the share of the last ten seconds in which all tasks were stalled, and of free space.
STALLED = {"memory": 20.0, "io": 60.0}
NEARLY_FULL = 0.03


class Machine:
    """Reads the files below ``root``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def _text(self, path: Path | str) -> str:
        try:
            return (self.root / path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    # -- inventory

    def interfaces(self) -> list[Interface]:
        """Return the network interfaces that are hardware, with the speed of their link."""
        found = []
        for folder in sorted((self.root / "sys/class/net").glob("*")):
            if not (folder / "device").exists():
                continue
            megabits = self._text(folder / "speed")
            found.append(
                Interface(
                    name=folder.name,
                    bits_per_s=int(megabits) * 10**6 if megabits.isdigit() and megabits != "0" else None,
                    is_up=self._text(folder / "operstate") == "up",
                )
            )
        return found

    def disks(self) -> list[Disk]:
        """Return the block devices that are hardware."""
        found = []
        for folder in sorted((self.root / "sys/block").glob("*")):
            sectors = self._text(folder / "size")
            if folder.name.startswith(_PASSING) or not sectors.isdigit() or sectors == "0":
                continue
            found.append(
                Disk(
                    name=folder.name,
                    size_bytes=int(sectors) * _SECTOR_BYTES,
                    is_rotating=self._text(folder / "queue/rotational") == "1",
                    model=self._text(folder / "device/model"),
                )
            )
        return found

    def file_systems(self) -> list[FileSystem]:
        """Return the file systems that files are written to: local ones with their size, remote ones without."""
        found: dict[str, FileSystem] = {}
        for line in self._text("proc/self/mounts").splitlines():
            device, mount, kind, *_ = (*line.split(), "", "", "")
            mount = mount.replace("\\040", " ")
            if kind in _REMOTE:
                found.setdefault(device, FileSystem(mount, kind, None))
            elif kind in _IMAGES:
                continue
            elif device.startswith("/dev/") and device not in found and (space := self._space(mount)):
                found[device] = FileSystem(mount, kind, space[0])
        return sorted(found.values(), key=lambda each: each.mount)

    def _space(self, mount: str) -> tuple[int, int] | None:
        """Return the size, and the space that an ordinary user may still write."""
        return space_of(self.root / mount.lstrip("/"))

    # -- measurements

    def sample(self, file_systems: list[FileSystem]) -> HostSample:
        """Return counters since the host started, and present values."""
        return HostSample(
            pressure=self._pressure(),
            received_bytes=self._net(0),
            sent_bytes=self._net(8),
            read_bytes=self._disks(2),
            written_bytes=self._disks(6),
            free_bytes={
                each.mount: space[1]
                for each in file_systems
                if each.size_bytes is not None and (space := self._space(each.mount))
            },
            queue=self._queue(),
        )

    def _queue(self) -> float | None:
        """Return tasks per core that ran or waited to run in the last minute; None if the kernel does not report it."""
        tasks = self._text("proc/loadavg").partition(" ")[0]
        cores = self._text("proc/stat").count("\ncpu")
        is_told = tasks.replace(".", "", 1).isdecimal() and cores
        return round(float(tasks) / cores, 3) if is_told else None

    def _pressure(self) -> dict[str, float]:
        """Return per cent of the last ten seconds in which some (or all) tasks were stalled: ``{"memory_full":
        3.1}``."""
        found = {}
        for resource in ("cpu", "io", "memory"):
            for line in self._text(f"proc/pressure/{resource}").splitlines():
                who, *fields = line.split()
                told = dict(field.partition("=")[::2] for field in fields)
                if who in ("some", "full") and "avg10" in told:
                    found[f"{resource}_{who}"] = float(told["avg10"])
        return found

    def _net(self, column: int) -> dict[str, int]:
        found = {}
        for line in self._text("proc/net/dev").splitlines():
            name, colon, rest = line.partition(":")
            fields = rest.split()
            if colon and name.strip() != "lo" and len(fields) > column:
                found[name.strip()] = int(fields[column])
        return found

    def _disks(self, column: int) -> dict[str, int]:
        found = {}
        for line in self._text("proc/diskstats").splitlines():
            fields = line.split()
            if len(fields) <= 3 + column or fields[2].startswith(_PASSING):
                continue
            if (self.root / "sys/block" / fields[2]).exists():  # a disk, not a partition
                found[fields[2]] = int(fields[3 + column]) * _SECTOR_BYTES
        return found

    @staticmethod
    def notes(sample: HostSample, file_systems: list[FileSystem]) -> list[NoteText]:
        """Return notes on problems for people; coarse, so that they do not change every second."""
        found = [
            NoteText(clause("Stalled", resource=resource, percent=int(share // 10 * 10)))
            for resource, limit in STALLED.items()
            if (share := sample.pressure.get(f"{resource}_full", 0.0)) >= limit
        ]
        sizes = {each.mount: each.size_bytes for each in file_systems}
        for mount, free in sample.free_bytes.items():
            size = sizes.get(mount)
            if size and free < NEARLY_FULL * size:
                percent = round(100 * NEARLY_FULL)
                found.append(NoteText(clause("NearlyFull", mount=mount, size_gib=size >> 30, percent=percent)))
        return found


def space_of(folder: Path) -> tuple[int, int] | None:
    """Return the size of a file system, and the space that an ordinary user may still write; None if unknown."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return None
    return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize
