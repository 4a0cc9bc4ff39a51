"""Blocks of logs in the storage ``archive``: files, or objects of an object store.

A stream of an archived log is divided into blocks of a fixed size, each compressed on its own (gzip), so any range is
read from one or two blocks with one block in memory at a time. The concatenated blocks of a stream can be read with
``zcat``. A block is named by its number and length, so a name always stands for the same bytes; if a log grows after it
was archived, a longer last block replaces the shorter one.
"""

from __future__ import annotations

import gzip
import uuid
import zlib
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.utils import timezone

from controlplane import storage
from controlplane.jobs.models import Part

STORAGE: Final = "archive"
# Names of blocks depend on it: with another size existing blocks are not found.
BLOCK_BYTES: Final = 4 * 2**20
_LEVEL: Final = 6
_WBITS: Final = 31  # gzip
_LEFT_AFTER: Final = timedelta(hours=1)


class BlockLost(Exception):
    """Raised if a block is missing or invalid."""


class StorageSilent(Exception):
    """Raised if the storage of archived logs does not answer."""


def numbers(begin: int, end: int) -> range:
    """Return the numbers of the blocks that bytes from ``begin`` to ``end`` of a stream lie in."""
    return range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES))


def length(number: int, end: int) -> int:
    """Return the length of a block of a stream of ``end`` bytes."""
    return min(BLOCK_BYTES, end - number * BLOCK_BYTES)


def _name(part: uuid.UUID, stream: str, number: int, size: int) -> str:
    return f"{part.hex[-2:]}/{part}-{stream}-{number:06}-{size}"


def names(part: uuid.UUID, stream: str, end: int) -> list[str]:
    """Return the names of the blocks of a stream of ``end`` bytes."""
    return [_name(part, stream, number, length(number, end)) for number in numbers(0, end)]


def write(part: uuid.UUID, stream: str, number: int, content: bytes) -> None:
    """Store a block durably."""
    packed = gzip.compress(content, _LEVEL, mtime=0)
    storages[STORAGE].save(_name(part, stream, number, len(content)), ContentFile(packed))


def read(part: uuid.UUID, stream: str, number: int, size: int) -> bytes:
    """Return the bytes of a block. Raises :class:`BlockLost` and :class:`StorageSilent`."""
    name = _name(part, stream, number, size)
    try:
        with storages[STORAGE].open(name) as file:
            # Incompressible data becomes slightly longer.
            packed: bytes = file.read(BLOCK_BYTES + 2**16)
    except FileNotFoundError:
        raise BlockLost(f"{name} is not there") from None
    except Exception as error:  # each storage has errors of its own
        raise StorageSilent(f"{type(error).__name__}: {error}") from error
    unpacker = zlib.decompressobj(_WBITS)
    try:
        content = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise BlockLost(f"{name} is no block: {error}") from None
    if not unpacker.eof or len(content) != size:
        raise BlockLost(f"{name} is no whole block")
    return content


def remove(names: Iterable[str]) -> None:
    """Remove blocks after the transaction has committed."""
    storage.forget(STORAGE, *names)


def sweep(shard: int) -> int:
    """Remove blocks without a log from one of the 256 parts of the storage; return how many."""
    place, folder = storages[STORAGE], f"{shard % 256:02x}"
    try:
        there = place.listdir(folder)[1]
    except FileNotFoundError:
        return 0
    by_part: dict[uuid.UUID | None, list[str]] = {}
    for name in there:
        by_part.setdefault(_part(name), []).append(f"{folder}/{name}")
    kept = Part.objects.filter(id__in=[part for part in by_part if part], log__gone_at=None, log__isnull=False)
    gone = [name for part in by_part.keys() - {None, *kept.values_list("id", flat=True)} for name in by_part[part]]
    # A block that is being written has no row yet.
    before = timezone.now() - _LEFT_AFTER
    gone += [name for name in by_part.get(None, []) if place.get_modified_time(name) < before]
    remove(gone)
    return len(gone)


def _part(name: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(name[:36])
    except ValueError:
        return None
