"""The files of the decision log: a full world every so many records, and only changes in between.

A segment is one file: a header line, then frames of length, method, id and packed record. Its first record is a full
one, so a segment can be read, or deleted, without any other. Each process writes segments of its own; several may write
into one folder. A frame that was cut off by a crash ends its segment; the frames before it stay readable.
"""

from __future__ import annotations

import heapq
import secrets
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from scheduler.core.model.clauses import Said
from scheduler.core.model.types import Move, Plan, Preempt, Resize, Snapshot, Start, Wait
from scheduler.decisions import canonical, packing

MAGIC: Final = b"switchyard decisions 1\n"
_FRAME: Final = struct.Struct(">IBQ")
SUFFIX: Final = ".decisions"
WHOLE_EVERY: Final = 64
# A packed world of more bytes than this is large.
LARGE: Final = 2**18
KEEP_S: Final = 7 * 86_400.0
KEEP_BYTES: Final = 2 * 2**30
# Limits the memory that one record takes when it is read.
LARGEST: Final = 2**30


@dataclass(frozen=True, slots=True)
class Record:
    """One decision: its inputs, its profiles and code, and the plan and its effect.

    ``specs`` holds the profiles as data, so that a later change of a name does not change the past. ``partial``: the
    plan has only those waiting stages whose reasons were made in the cycle, and ``digest`` is of that plan.
    """

    id: int
    at: float
    code: str
    profiles: Mapping[str, str]
    specs: Mapping[str, Mapping[str, Any]]
    snapshot: Snapshot
    plan: Plan
    digest: str
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    took_s: float = 0.0
    partial: bool = False


class _Change(msgspec.Struct, omit_defaults=True):
    put: dict[str, msgspec.Raw] = {}
    gone: list[str] = []


class _Plan(msgspec.Struct, omit_defaults=True):
    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    waits: _Change = msgspec.field(default_factory=_Change)
    order: list[int] = []
    replanned: str = ""
    wake_at: float | None = None
    resizes: tuple[Resize, ...] = ()
    moves: tuple[Move, ...] = ()
    replanned_said: Said = ()


class _Body(msgspec.Struct, omit_defaults=True):
    whole: bool
    at: float
    code: str
    profiles: dict[str, str]
    specs: dict[str, dict[str, Any]]
    world: dict[str, _Change]
    plan: _Plan
    digest: str
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    took_s: float = 0.0
    partial: bool = False


_BODY: Final = msgspec.msgpack.Decoder(_Body)
_WAIT: Final = msgspec.msgpack.Decoder(Wait)


@dataclass
class Writer:
    """Appends records to a folder, one segment after the other. Not thread-safe.

    A segment has ``whole_every`` records. One that began with a large world continues until its changes are as large,
    so that such a world is not written again for a few changed stages.
    """

    folder: Path
    whole_every: int = WHOLE_EVERY
    _path: Path | None = None
    _count: int = 0
    # The size of the full record of the segment, and of all after it, in bytes.
    _whole_bytes: int = 0
    _change_bytes: int = 0
    _world: Snapshot | None = None
    _waits: dict[str, Any] = field(default_factory=dict)

    def append(self, record: Record) -> int:
        """Write one record and return its size in bytes. Raises ``OSError`` if the folder cannot take it; the next one
        then begins a new segment."""
        path, count = self._path, self._count
        self._path = None
        is_due = self._whole_bytes < LARGE or self._change_bytes >= self._whole_bytes
        whole = path is None or (count >= self.whole_every and is_due)
        if whole:
            self.folder.mkdir(parents=True, exist_ok=True)
            path, count = self.folder / f"{record.id:012}-{secrets.token_hex(4)}{SUFFIX}", 0
        assert path is not None
        waits = {wait.stage: wait for wait in record.plan.waits}
        method, packed = packing.pack(canonical.encode(self._body(record, waits, whole=whole)))
        with path.open("ab") as file:
            file.write((MAGIC if whole else b"") + _FRAME.pack(len(packed), method, record.id) + packed)
        if whole:
            self._whole_bytes, self._change_bytes = len(packed), 0
        else:
            self._change_bytes += len(packed)
        self._path, self._count, self._world, self._waits = path, count + 1, record.snapshot, waits
        return len(packed)

    def frame(self, record: Record) -> bytes:
        """Return the record as a segment of its own."""
        waits = {wait.stage: wait for wait in record.plan.waits}
        method, packed = packing.pack(canonical.encode(self._body(record, waits, whole=True)))
        return MAGIC + _FRAME.pack(len(packed), method, record.id) + packed

    def _body(self, record: Record, waits: Mapping[str, Any], *, whole: bool) -> _Body:
        known = None if whole else self._world
        changes = {name: _change(*found) for name, found in canonical.changes(known, record.snapshot).items()}
        place = {name: number for number, name in enumerate(sorted(waits))}
        plan = record.plan
        return _Body(
            whole=whole,
            at=record.at,
            code=record.code,
            profiles=dict(record.profiles),
            specs={name: dict(spec) for name, spec in record.specs.items()},
            world={name: change for name, change in changes.items() if whole or change.put or change.gone},
            plan=_Plan(
                plan.starts,
                plan.preempts,
                _change({} if whole else self._waits, waits),
                [place[wait.stage] for wait in plan.waits],
                plan.replanned,
                plan.wake_at,
                plan.resizes,
                plan.moves,
                plan.replanned_said,
            ),
            digest=record.digest,
            started=record.started,
            stopped=record.stopped,
            skipped=record.skipped,
            took_s=record.took_s,
            partial=record.partial,
        )


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> _Change:
    """Return what turns ``old`` pieces into ``new`` ones."""
    put = {}
    for name, piece in new.items():
        known = old.get(name)
        if known is None or (known is not piece and known != piece):
            put[name] = msgspec.Raw(canonical.encode(piece))
    return _Change(put, [name for name in old if name not in new])


class _Player:
    """Plays a segment: keeps the world as bytes, and decoded pieces as long as their bytes are unchanged."""

    def __init__(self) -> None:
        self._world: dict[str, dict[str, Any]] = {}
        self._waits: dict[str, Any] = {}

    def play(self, body: _Body) -> None:
        """Apply the next record."""
        if body.whole:
            self._world, self._waits = {}, {}
        for name, change in body.world.items():
            if name in canonical.shapes():  # skips a field that this code does not have any more
                found = self._world.setdefault(name, {})
                _apply_change(found, change, lambda content, name=name: canonical.decode(name, content))
        _apply_change(self._waits, body.plan.waits, _WAIT.decode)

    def record(self, number: int, body: _Body) -> Record:
        """Return the present record."""
        waits = [self._waits[name] for name in sorted(self._waits)]
        plan = Plan(
            body.plan.starts,
            body.plan.preempts,
            tuple(waits[place] for place in body.plan.order),
            body.plan.replanned,
            body.plan.wake_at,
            resizes=body.plan.resizes,
            moves=body.plan.moves,
            replanned_said=body.plan.replanned_said,
        )
        return Record(
            id=number,
            at=body.at,
            code=body.code,
            profiles=body.profiles,
            specs=body.specs,
            snapshot=canonical.whole(self._world),
            plan=plan,
            digest=body.digest,
            started=body.started,
            stopped=body.stopped,
            skipped=body.skipped,
            took_s=body.took_s,
            partial=body.partial,
        )


def _apply_change(pieces: dict[str, Any], change: _Change, decode: Any) -> None:
    for name in change.gone:
        pieces.pop(name, None)
    for name, content in change.put.items():
        pieces[name] = decode(content)


def segments(folder: Path) -> list[Path]:
    """Return the segments of a folder in the order of their first records."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def play(path: Path, wanted: int | None = None) -> Iterator[Record]:
    """Yield the records of one segment in order, or only the one that is ``wanted``. Raises ``ValueError`` if the file
    is no segment; a frame that was cut off ends it."""
    reel = _Player()
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path.name} is not a segment of a decision log")
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            length, method, number = _FRAME.unpack(head)
            if length > LARGEST or len(packed := file.read(length)) < length:
                return
            try:
                body = _BODY.decode(packing.unpack(method, packed))
            except msgspec.MsgspecError as error:
                raise ValueError(f"decision {number} in {path.name} cannot be read: {error}") from None
            reel.play(body)
            if wanted is None or wanted == number:
                yield reel.record(number, body)
            if wanted is not None and number >= wanted:
                return


def find(folder: Path, number: int) -> Record | None:
    """Return the record of that id, or ``None`` if it is not (or no longer) stored."""
    for path in reversed(segments(folder)):
        if int(path.name[:12]) <= number:
            found = next(play(path, number), None)
            if found is not None:
                return found
    return None


def read(source: Path, since: float = 0.0, until: float = float("inf")) -> Iterator[Record]:
    """Yield the records of a folder, or of one segment, that were decided in that time, in the order of their ids."""
    paths = segments(source) if source.is_dir() else [source]
    if not paths:
        raise ValueError(f"there is no decision in {source}")
    recent = [path for path in paths if path.stat().st_mtime >= since]
    for record in heapq.merge(*(play(path) for path in recent), key=lambda one: one.id):
        if since <= record.at <= until:
            yield record


def single_record_segment(record: Record) -> bytes:
    """Return the record as the content of a segment of its own."""
    return Writer(Path()).frame(record)


def prune(folder: Path, now: float, keep_s: float = KEEP_S, keep_bytes: int = KEEP_BYTES) -> int:
    """Delete segments whose last record is older than ``keep_s``, then the oldest until ``keep_bytes`` are left.

    Returns how many were deleted. The newest segment always stays.
    """
    found = []
    for path in segments(folder):
        try:
            about = path.stat()
        except FileNotFoundError:  # another process was first
            continue
        found.append((path, about.st_mtime, about.st_size))
    total, gone = sum(size for _, _, size in found), 0
    for path, written_at, size in found[:-1]:
        if written_at < now - keep_s or total > keep_bytes:
            path.unlink(missing_ok=True)
            total -= size
            gone += 1
    return gone
