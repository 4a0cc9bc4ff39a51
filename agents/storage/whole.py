"""Checks by a file's own structure whether it is complete: zip archives, safetensors, pickles, JSON."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Final

from agents.decode import parse
from agents.storage.tree import Tree, join

_END: Final = struct.Struct("<4s4H2LH")  # end of central directory, the last record of a zip archive (APPNOTE 4.3.16)
_LONG = 0xFFFFFFFF
_HEADER_MAX: Final = 16 << 20
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\..+)")


def is_zip(tree: Tree, path: str) -> bool:
    """Whether the archive has its end record, and that points to its directory. torch.save writes such archives."""
    leaf = tree.leaves.get(path)
    if leaf is None or leaf.size < _END.size:
        return False
    tail = tree.bytes(path, leaf.size - _END.size, _END.size)
    if len(tail) < _END.size:
        return False
    sign, *_, length, offset, _ = _END.unpack(tail)
    if sign != b"PK\x05\x06":
        return False
    if _LONG in (length, offset):
        return tree.bytes(path, leaf.size - _END.size - 20, 4) == b"PK\x06\x07"
    first = tree.bytes(path, offset, 4)
    return bool(offset + length <= leaf.size - _END.size and first in (b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06"))


def is_safetensors(tree: Tree, path: str) -> bool:
    """Whether the file is as long as its header tells: eight bytes of length, a JSON header, then the tensors."""
    leaf = tree.leaves.get(path)
    head = tree.bytes(path, 0, 8)
    if leaf is None or len(head) < 8:
        return False
    (length,) = struct.unpack("<Q", head)
    if length > _HEADER_MAX:
        return bool(leaf.size > 8 + length)
    try:
        header = parse(tree.bytes(path, 8, length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(leaf.size == 8 + length + max(ends, default=0))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False


def is_whole(tree: Tree, path: str) -> bool:
    """Whether the file is not visibly truncated; a file of an unknown kind must only not be empty."""
    leaf = tree.leaves.get(path)
    if leaf is None or leaf.size == 0:
        return False
    if path.endswith(".safetensors"):
        return is_safetensors(tree, path)
    if path.endswith(".json"):
        return tree.json(path) is not None
    head = tree.bytes(path, 0, 2)
    if b"PK".startswith(head):  # of an archive that was cut after its first byte, too
        return is_zip(tree, path)
    if head[:1] == b"\x80" and path.endswith((".pkl", ".metadata", ".pickle")):
        return tree.bytes(path, leaf.size - 1, 1) == b"."  # a pickle ends with STOP
    return True


def missing(tree: Tree, folder: str, names: Iterable[str]) -> str:
    """Return the first of the files that is missing or truncated, as a clause; empty if all are complete."""
    for name in names:
        if join(folder, name) not in tree.leaves:
            return f"{name} is missing"
        if not is_whole(tree, join(folder, name)):
            return f"{name} is cut"
    return ""


def shards_missing(tree: Tree, folder: str) -> str:
    """Return what is missing of sharded weights, by their index and by their own names (``model-00001-of-00003``)."""
    sets: set[tuple[str, str, str]] = set()
    for name in tree.files(folder):
        if name.endswith(".index.json"):
            index = tree.json(join(folder, name))
            shards = index.get("weight_map") if isinstance(index, dict) else None
            if not isinstance(shards, dict):
                return f"{name} is cut"
            if lack := missing(tree, folder, sorted({str(shard) for shard in shards.values()})):
                return lack
        if match := _SHARD.fullmatch(name):
            stem, _, count, suffix = match.groups()
            sets.add((stem, count, suffix))
    for stem, count, suffix in sorted(sets):
        # Generated lazily: a name may claim to be one of very many.
        if lack := missing(tree, folder, (f"{stem}-{i + 1:05d}-of-{count}{suffix}" for i in range(int(count)))):
            return lack
    return ""
