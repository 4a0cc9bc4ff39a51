"""The write-ahead journal: every part ever started here, the newest generation seen, and the number of agent starts.

JSON lines with a checksum each, appended and then made durable in groups: whoever needs durability awaits
:meth:`Journal.sync`, and all who wait at the same moment share one fsync. A torn last line is truncated when the
journal is opened. A forgotten part leaves a tombstone, because a part is never started twice, even if a restored
control plane asks for it again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from agents.decode import BoundedDecoder, Undecodable
from agents.protocol import DeviceClaim, Exit
from agents.supervisor.procfs import boottime
from agents.supervisor.record import sync_folder, write_all

TOMBSTONES: Final = 4096
MOST_TOMBSTONES: Final = 20_000
TOMBSTONES_KEPT_S: Final = 7 * 86_400.0
_CHECKSUM: Final = re.compile(rb',"crc":"([0-9a-f]{8})"}$')
RESERVE_BYTES: Final = 1 << 20
FULL_BELOW_BYTES: Final = 128 << 20
FULL_BELOW_FILES: Final = 1_000
_COMPACT_ABOVE_BYTES: Final = 1 << 20


class Started(msgspec.Struct, tag="started", tag_field="is", frozen=True, omit_defaults=True):
    """The agent started for the ``start_seq``-th time, in this boot, after a total running time of ``lived_s``."""

    start_seq: int
    boot_id: str
    lived_s: float = 0.0


class Seen(msgspec.Struct, tag="seen", tag_field="is", frozen=True, omit_defaults=True):
    """The newest generation of Desired that was applied, and the lineage of the database that sent it."""

    generation: int
    lineage: str = ""


class Intent(msgspec.Struct, tag="intent", tag_field="is", frozen=True, omit_defaults=True):
    """A part is about to be started. Durable before anything of it exists.

    ``executor`` names what runs it (empty: plain processes), ``cpus`` the cores it starts on (empty: any), ``weight``
    the weight of its share of cores, ``uid`` and ``gid`` the user it runs as if its project has its own;
    ``lease_until`` is when the lease under which it was ordered ends (see :mod:`agents.supervisor.lease`), ``ports``
    those whose listeners are reported. ``disk_bytes`` is how much its files may take up (0: any).
    """

    part: str
    attempt: str
    epoch: int
    boot_id: str
    folder: str
    spec_rev: int = 1
    rank: int = 0
    lineage: str = ""
    stop_to: str = "main"
    devices: list[DeviceClaim] = msgspec.field(default_factory=list)
    disk_bytes: int = 0
    executor: str = ""
    cpus: list[int] = msgspec.field(default_factory=list)
    weight: int = 100
    uid: int | None = None
    gid: int | None = None
    home: str = ""
    lease_until: float | None = None
    ports: list[int] = msgspec.field(default_factory=list)


class Signalled(msgspec.Struct, tag="signalled", tag_field="is", frozen=True, omit_defaults=True):
    """A signal was sent; it is not repeated for the same ``signal_rev``, which the journal calls ``spec_rev``."""

    part: str
    spec_rev: int


class Ended(msgspec.Struct, tag="ended", tag_field="is", frozen=True, omit_defaults=True):
    part: str
    exit: Exit


class Gone(msgspec.Struct, tag="gone", tag_field="is", frozen=True, omit_defaults=True):
    """The server recorded the end and the agent dropped the part; this is its tombstone.

    ``lived_s`` is the agent's total running time until then: setting a clock does not change a tombstone's age.
    """

    part: str
    attempt: str = ""
    epoch: int = 0
    exit: Exit | None = None
    lived_s: float = 0.0


Line = Started | Seen | Intent | Signalled | Ended | Gone
_lines: Final = BoundedDecoder[Line](Line)
_encode: Final = msgspec.json.Encoder().encode


class Past(msgspec.Struct):
    """The state that follows from reading a journal from its first line to its last."""

    start_seq: int = 0
    boot_id: str = ""
    generation: int = 0
    lineage: str = ""
    intents: dict[str, Intent] = msgspec.field(default_factory=dict)
    ends: dict[str, Exit] = msgspec.field(default_factory=dict)
    signalled: dict[str, int] = msgspec.field(default_factory=dict)
    gone: dict[str, Gone] = msgspec.field(default_factory=dict)
    lived_s: float = 0.0
    unreadable: int = 0

    def take(self, line: Line) -> None:
        """Apply one line to the state. Idempotent."""
        match line:
            case Started():
                self.start_seq = max(self.start_seq, line.start_seq)
                self.boot_id = line.boot_id
                self.lived_s = max(self.lived_s, line.lived_s)
            case Seen():
                self.generation, self.lineage = line.generation, line.lineage
            case Intent():
                self.intents[line.part] = line
            case Signalled():
                self.signalled[line.part] = max(line.spec_rev, self.signalled.get(line.part, 0))
            case Ended():
                if line.part in self.intents:
                    self.ends[line.part] = line.exit
            case Gone():
                self.intents.pop(line.part, None)
                self.signalled.pop(line.part, None)
                self.ends.pop(line.part, None)
                self.gone[line.part] = line
                self.lived_s = max(self.lived_s, line.lived_s)
                while len(self.gone) > TOMBSTONES and self._may_forget(next(iter(self.gone.values()))):
                    del self.gone[next(iter(self.gone))]

    def _may_forget(self, oldest: Gone) -> bool:
        return len(self.gone) > MOST_TOMBSTONES or self.lived_s - oldest.lived_s > TOMBSTONES_KEPT_S

    def lines(self) -> Iterator[Line]:
        """Yield the shortest sequence of lines with the same state."""
        yield Started(start_seq=self.start_seq, boot_id=self.boot_id, lived_s=self.lived_s)
        yield Seen(generation=self.generation, lineage=self.lineage)
        yield from self.gone.values()
        yield from self.intents.values()
        for part, spec_rev in self.signalled.items():
            yield Signalled(part=part, spec_rev=spec_rev)
        for part, end in self.ends.items():
            yield Ended(part=part, exit=end)


def written(line: Line) -> bytes:
    """Return a line as it is written: JSON whose last field is the checksum (CRC-32) of the rest."""
    text = _encode(line)
    return b'%b,"crc":"%08x"}\n' % (text[:-1], crc32(text))


def _whole(raw: bytes) -> bytes:
    """Return the line without its checksum. Raises Undecodable if the checksum does not match.

    Lines of agents from before checksums have none.
    """
    if (found := _CHECKSUM.search(raw)) is None:
        return raw
    text = raw[: found.start()] + b"}"
    if int(found[1], 16) != crc32(text):
        raise Undecodable("this line is not as it was written")
    return text


def read(path: Path) -> tuple[Past, int]:
    """Read a journal; return its state, and the length of its complete lines, without a torn last one, in bytes."""
    past = Past()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return past, 0
    whole = content[: content.rfind(b"\n") + 1]
    for raw in whole.split(b"\n")[:-1]:
        try:
            line = _lines.read(_whole(raw))
            _encode(line)  # a line that cannot be encoded again would prevent compaction
            past.take(line)
        except (Undecodable, OverflowError):
            past.unreadable += 1
    return past, len(whole)


def runs_full(disk: os.statvfs_result, did: bool) -> bool:
    """Whether a disk has so little space, or so few free inodes, that nothing more should be started on it.

    If it ``did`` run full, it stays full until twice as much is free.
    """
    factor = 2 if did else 1
    room = min(FULL_BELOW_BYTES, disk.f_blocks * disk.f_frsize // 50)
    files = min(FULL_BELOW_FILES, disk.f_files // 50)
    return disk.f_bavail * disk.f_frsize < room * factor or (disk.f_files > 0 and disk.f_favail < files * factor)


class Journal:
    """One agent's journal on disk. ``past`` is always the state of all appended lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.past, whole = read(path)
        self.disk_pressure = False
        self._reserve = path.with_suffix(".reserve")
        self._pending: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.ftruncate(self._file, whole)
        self._size = self._compacted = whole
        self._began_at = boottime()
        self._lived_before_s = self.past.lived_s
        self._keep_reserve()
        if content := self._shorter():
            self.compact(content)

    def _keep_reserve(self) -> None:
        """Reserve space that is released on a full disk, so that running parts can still be recorded as ended."""
        try:
            if not self._reserve.exists():
                descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
                finally:
                    os.close(descriptor)
            self.disk_pressure = False
        except OSError:
            self._reserve.unlink(missing_ok=True)
            self.disk_pressure = True

    @property
    def lived_s(self) -> float:
        """Return the total running time of agents with this journal, in seconds."""
        return self._lived_before_s + boottime() - self._began_at

    def append(self, line: Line) -> None:
        """Append a line; it is durable after the next :meth:`sync`."""
        self.past.take(line)
        self._pending.append(written(line))

    async def sync(self) -> None:
        """Return when everything appended before this call is on disk. Raises OSError if writing fails."""
        while self._pending or self._waiting:
            if self._waiting is not None:
                await asyncio.shield(self._waiting)
                continue
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            try:
                batch = b"".join(self._pending)
                self._pending.clear()
                await loop.run_in_executor(None, self._write, batch)
                # Not with every batch: the cost of compaction is proportional to the whole state.
                if self._size > max(_COMPACT_ABOVE_BYTES, 2 * self._compacted):
                    if content := self._shorter():
                        await loop.run_in_executor(None, self.compact, content)
                    else:
                        self._compacted = self._size
            except OSError:
                self._pending.appendleft(batch)
                raise
            finally:
                waiting, self._waiting = self._waiting, None
                waiting.set_result(None)

    def flush(self) -> None:
        """Do the same without an event loop, for the start and the end of the agent."""
        batch = b"".join(self._pending)
        self._pending.clear()
        self._write(batch)

    def _write(self, batch: bytes) -> None:
        if not batch:
            return
        try:
            self._append(batch)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.disk_pressure = True
            self._reserve.unlink(missing_ok=True)
            self._append(batch)

    def _append(self, batch: bytes) -> None:
        """Write whole lines or none: a partial write on a full disk is truncated."""
        try:
            write_all(self._file, batch)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(batch)

    def _shorter(self) -> bytes | None:
        """Return the shortest journal with the same state, if it is much shorter. Only for the event loop's thread."""
        content = b"".join(map(written, self.past.lines()))
        return content if len(content) * 2 < self._size else None

    def compact(self, content: bytes) -> None:
        """Replace the file's content atomically. Pending lines may be in both, since applying a line is idempotent."""
        draft = self.path.with_suffix(".draft")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
        os.rename(draft, self.path)
        sync_folder(str(self.path.parent))
        os.close(self._file)
        self._file, self._size, self._compacted = descriptor, len(content), len(content)

    def recheck_disk(self) -> None:
        """Check whether the disk is nearly full, and restore the reserve once there is space again."""
        if self.disk_pressure and not self._reserve.exists():
            self._keep_reserve()
        if self._reserve.exists():
            self.disk_pressure = runs_full(os.statvfs(self.path.parent), self.disk_pressure)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            os.close(self._file)
