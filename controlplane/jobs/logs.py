"""Stores logs: one file per stream of a part for the bytes, and rows for the valid length and the order of arrival.

Some time after a part has ended its bytes move to blocks (:mod:`controlplane.jobs.log_archive`); they are read from
there as from files.

A span is a run of bytes of one stream that arrived without bytes of the other stream in between. ``start`` counts the
bytes of both streams before it, ``offset`` those of its own stream. Every offset is therefore found by an index,
however long a log is, and an append extends the last span or begins another. Bytes are made durable before their row
counts them; bytes in a file beyond the length in the rows were never acknowledged, and are overwritten.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from controlplane.jobs import log_blocks
from controlplane.jobs.models import LogSpan, Part, PartLog

STREAMS: Final = ("out", "err")
# The most spans read by one query; a reader continues after them.
MOST_SPANS: Final = 20_000
PIECE_BYTES: Final = 256 * 1024
# Lines may be long: a tail reads no more than this to find the last lines.
TAIL_BYTES: Final = 8 * 2**20
FIRST_TAIL_BYTES: Final = 64 * 1024

_ENDS = """
SELECT p.id, v.stream, s.end FROM unnest(%s::uuid[]) AS p(id) CROSS JOIN (VALUES ('out'), ('err')) AS v(stream)
CROSS JOIN LATERAL (SELECT "offset" + size AS end FROM jobs_logspan
                    WHERE part_id = p.id AND stream = v.stream ORDER BY "offset" DESC LIMIT 1) s
"""
_LAST = """
SELECT p.id, s.id, s.stream, s.start + s.size FROM unnest(%s::uuid[]) AS p(id)
CROSS JOIN LATERAL (SELECT * FROM jobs_logspan WHERE part_id = p.id ORDER BY start DESC LIMIT 1) s
"""
# The span that contains the beginning of the range, and the spans after it up to its end.
_WITHIN = """
(SELECT stream, start, "offset", size FROM jobs_logspan
 WHERE part_id = %(part)s AND start <= %(begin)s ORDER BY start DESC LIMIT 1)
UNION ALL
(SELECT stream, start, "offset", size FROM jobs_logspan
 WHERE part_id = %(part)s AND start > %(begin)s AND start < %(end)s ORDER BY start LIMIT %(most)s)
"""


class LogLost(Exception):
    """Raised if bytes that were acknowledged are not in the file any more."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that continue a stream of a part; ``offset`` is their position in the stream."""

    part: uuid.UUID
    stream: str
    offset: int
    content: bytes


def folder(part: uuid.UUID) -> Path:
    """Return the folder of a part's log files; parts are distributed over 256 parent folders."""
    return settings.LOGS / part.hex[-2:] / str(part)


def ends(parts: Sequence[uuid.UUID]) -> dict[tuple[uuid.UUID, str], int]:
    """Return the stored length of each stream in bytes; streams without bytes are left out."""
    with connection.cursor() as cursor:
        cursor.execute(_ENDS, [list(parts)])
        return {(part, stream): int(end) for part, stream, end in cursor.fetchall()}


def archived(parts: Sequence[uuid.UUID]) -> dict[uuid.UUID, dict[str, int]]:
    """Return how many bytes of each stream lie in the archive; parts without a log are left out."""
    rows = PartLog.objects.filter(part_id__in=parts).values_list("part_id", "archived_out", "archived_err")
    return {part: {"out": out, "err": err} for part, out, err in rows}


# The time is written at most once an hour, so that the row stays where it is in its index.
_LONGER = """
UPDATE jobs_partlog l SET size_bytes = l.size_bytes + v.size, archived_at = NULL,
    written_at = CASE WHEN l.written_at < now() - interval '1 hour' THEN now() ELSE l.written_at END
FROM unnest(%s::uuid[], %s::bigint[]) AS v(part, size) WHERE l.part_id = v.part RETURNING l.part_id
"""
_FIRST = """
INSERT INTO jobs_partlog (part_id, project_id, size_bytes, written_at)
SELECT p.id, j.project_id, v.size, now() FROM unnest(%s::uuid[], %s::bigint[]) AS v(part, size)
JOIN jobs_part p ON p.id = v.part JOIN jobs_attempt a ON a.id = p.attempt_id
JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
"""


def append(pieces: Iterable[Piece]) -> None:
    """Store bytes, each piece continuing its stream. The caller's transaction holds the locks of the parts.

    Raises ``OSError`` if they cannot be written; then none of them counts.
    """
    pieces = [piece for piece in pieces if piece.content]
    write(pieces)
    with connection.cursor() as cursor:
        cursor.execute(_LAST, [list({piece.part for piece in pieces})])
        last = {part: (span, stream, int(end)) for part, span, stream, end in cursor.fetchall()}
        for piece in pieces:
            size = len(piece.content)
            span, stream, start = last.get(piece.part, (None, "", 0))
            if stream == piece.stream:
                cursor.execute("UPDATE jobs_logspan SET size = size + %s WHERE id = %s", [size, span])
            else:
                span = LogSpan.objects.create(
                    part_id=piece.part, stream=piece.stream, start=start, offset=piece.offset, size=size
                ).pk
            last[piece.part] = (span, piece.stream, start + size)
        added = Counter[uuid.UUID]()
        for piece in pieces:
            added[piece.part] += len(piece.content)
        cursor.execute(_LONGER, [list(added), list(added.values())])
        for (known,) in cursor.fetchall():
            del added[known]
        if added:
            cursor.execute(_FIRST, [list(added), list(added.values())])


def write(pieces: Sequence[Piece]) -> None:
    """Write the bytes to their files and make them durable."""
    by_file: dict[tuple[uuid.UUID, str], list[Piece]] = {}
    for piece in pieces:
        by_file.setdefault((piece.part, piece.stream), []).append(piece)
    for (part, stream), some in by_file.items():
        path = folder(part) / stream
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            handle = os.open(path, flags, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, flags, 0o600)
        try:
            for piece in some:
                rest, at = memoryview(piece.content), piece.offset
                while rest:
                    wrote = os.pwrite(handle, rest, at)
                    rest, at = rest[wrote:], at + wrote
            os.fdatasync(handle)
        finally:
            os.close(handle)


def size(part: Part, stream: str) -> int:
    """Return the number of bytes of ``out``, ``err`` or ``both``."""
    return sum(end for (_, name), end in ends([part.id]).items() if stream in ("both", name))


def read(part: Part, stream: str, begin: int, length: int) -> bytes:
    """Bytes from ``begin`` on: at most ``length``, fewer at the end or where streams alternate very often; none only
    at the end. ``both`` is in the order of arrival. Raises :class:`LogLost` and ``StorageSilent``."""
    with Reader(part.id) as reader:
        return reader.read(stream, begin, min(begin + length, size(part, stream)))


def tail(part: Part, stream: str, lines: int) -> bytes:
    """Return the last ``lines`` lines; a last line without a newline counts too."""
    end, span = size(part, stream), FIRST_TAIL_BYTES
    with Reader(part.id) as reader:
        while True:
            begin = max(0, end - span)
            content = bytearray()
            while more := reader.read(stream, begin + len(content), end):
                content += more
            found = last_lines(bytes(content), lines)
            if len(found) < len(content) or begin == 0 or span >= TAIL_BYTES:
                return found
            span *= 4


def pieces(part: Part, stream: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the bytes from ``begin`` up to ``end``, piece by piece; without an end, all that there are by then."""
    at = begin
    with Reader(part.id) as reader:
        while content := reader.read(stream, at, min(at + PIECE_BYTES, size(part, stream) if end is None else end)):
            yield content
            at += len(content)


def last_lines(content: bytes, count: int) -> bytes:
    """Return the last ``count`` lines of a text."""
    if count == 0:
        return b""
    end = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _line in range(count):
        end = content.rfind(b"\n", 0, end)
        if end < 0:
            return content
    return content[end + 1 :]


def remove(parts: Sequence[uuid.UUID]) -> None:
    """Remove the bytes of these parts, which have ended; their rows in ``PartLog`` record the removal."""
    unlink(parts)
    LogSpan.objects.filter(part_id__in=parts).delete()
    PartLog.objects.filter(part_id__in=parts).update(gone_at=Now())


def unlink(parts: Sequence[uuid.UUID]) -> None:
    """Remove the files and blocks of these parts after the transaction has committed; their rows are still there."""
    log_blocks.remove(
        name
        for part, moved in archived(parts).items()
        for stream, end in moved.items()
        for name in log_blocks.names(part, stream, end)
    )

    def remove_files() -> None:
        for part in parts:
            _unlink(folder(part))

    transaction.on_commit(remove_files)


def lock(part: uuid.UUID) -> None:
    """Have whoever appends to the log of a part wait until the transaction ends."""
    Part.objects.select_for_update().filter(id=part).values_list("id", flat=True).first()


def clear(part: uuid.UUID) -> bool:
    """Remove the files of a part whose whole log lies in the archive; return False if it does not."""
    with transaction.atomic():
        lock(part)
        if not PartLog.objects.filter(part_id=part, archived_at__isnull=False).exists():
            return False
        _unlink(folder(part))
        return True


def _unlink(place: Path) -> None:
    for stream in STREAMS:
        (place / stream).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        place.rmdir()


def sweep(shard: int) -> int:
    """Remove folders of parts that no longer exist, or lie in the archive, in one of the 256 parent folders.

    Return how many were removed.
    """
    base = settings.LOGS / f"{shard % 256:02x}"
    if not base.is_dir():
        return 0
    there = {name.name: name for name in base.iterdir() if _is_part(name.name)}
    kept = Part.objects.filter(id__in=list(there)).values_list("id", flat=True)
    gone = there.keys() - {str(part) for part in kept}
    for name in gone:
        _unlink(there[name])
    # A move that was killed has left them.
    moved = PartLog.objects.filter(part_id__in=list(there), archived_at__isnull=False)
    return len(gone) + sum(clear(part) for part in list(moved.values_list("part_id", flat=True)))


def _is_part(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


class Reader:
    """Reads the log of one part, from files and blocks, with its files open and a block of each stream in memory."""

    def __init__(self, part: uuid.UUID) -> None:
        self._part = part
        self._open: dict[str, int] = {}
        self._blocks: dict[str, tuple[int, bytes]] = {}
        self._look()

    def _look(self) -> None:
        """Find out where the bytes lie. A file that is opened first has all that is not archived by then."""
        self.close()
        for stream in STREAMS:
            with contextlib.suppress(FileNotFoundError):
                path = folder(self._part) / stream
                self._open[stream] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._archived = archived([self._part]).get(self._part, dict.fromkeys(STREAMS, 0))

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, stream: str, begin: int, until: int) -> bytes:
        """Return bytes from ``begin`` on, up to ``until``; see :func:`read`."""
        if begin >= until:
            return b""
        if stream != "both":
            return self.exactly(stream, begin, until - begin)
        with connection.cursor() as cursor:
            cursor.execute(_WITHIN, {"part": self._part, "begin": begin, "end": until, "most": MOST_SPANS})
            found = bytearray()
            for name, start, offset, span in cursor.fetchall():
                first, last = max(begin, start), min(until, start + span)
                found += self.exactly(name, offset + first - start, last - first)
        return bytes(found)

    def exactly(self, stream: str, offset: int, length: int) -> bytes:
        """Return just these bytes of a stream. Raises :class:`LogLost` if they are not there."""
        try:
            return self._exactly(stream, offset, length)
        except LogLost:
            # They may have moved since.
            self._look()
            return self._exactly(stream, offset, length)

    def _exactly(self, stream: str, offset: int, length: int) -> bytes:
        moved = self._archived[stream]
        in_blocks = max(0, min(length, moved - offset))
        found = self._of_blocks(stream, offset, in_blocks, moved)
        if in_blocks == length:
            return found
        offset, length = offset + in_blocks, length - in_blocks
        more = os.pread(self._open[stream], length, offset) if stream in self._open else b""
        if len(more) < length:
            # A database that was restored from a backup may not know of a move.
            more = self._of_blocks(stream, offset, length, ends([self._part]).get((self._part, stream), 0))
        return found + more

    def _of_blocks(self, stream: str, offset: int, length: int, end: int) -> bytes:
        """Return bytes from the blocks of a stream that had ``end`` bytes when it was archived."""
        found = bytearray()
        while len(found) < length:
            number, begin = divmod(offset + len(found), log_blocks.BLOCK_BYTES)
            size = log_blocks.length(number, end)
            if self._blocks.get(stream, (-1, b""))[0] != number or len(self._blocks[stream][1]) != size:
                self._blocks.pop(stream, None)
                try:
                    self._blocks[stream] = number, log_blocks.read(self._part, stream, number, size)
                except log_blocks.BlockLost as error:
                    raise LogLost(f"{length} bytes of {stream} of part {self._part} are lost: {error}") from None
            found += self._blocks[stream][1][begin : begin + length - len(found)]
        return bytes(found)
