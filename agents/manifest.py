"""A file or folder by its content: each file's digest, and one digest of all, under which it is kept and fetched.

The digest of a folder is that of its manifest: a JSON list of paths, sizes and digests in the order of the paths. Two
folders with the same files have the same digest wherever they lie; a changed file changes it.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from agents.ends import Refusal

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
PIECE: Final = 1 << 20
MAX_FILES: Final = 200_000
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class Unfit(Refusal):
    """The file or folder cannot be kept by digest."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One file of a folder; ``path`` is relative, with ``/`` between its steps, and leads nowhere else."""

    path: str
    size: int
    sha256: str
    executable: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """What a folder holds, in the order of the paths; or a single file under its own name."""

    files: list[Entry]
    is_file: bool = False

    def encode(self) -> bytes:
        return _encode(self)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)


def decode(content: bytes) -> Manifest:
    """A manifest from the wire. Raises Unfit for one with a path that would leave its folder."""
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise Unfit(f"what arrived is no manifest: {error}") from error
    for entry in found.files:
        steps = entry.path.split("/")
        if not entry.path or any(step in ("", ".", "..") or "\0" in step for step in steps):
            raise Unfit(f"a manifest names {entry.path!r}, which does not stay in its folder")
        if not DIGEST.fullmatch(entry.sha256) or entry.size < 0:
            raise Unfit(f"a manifest gives {entry.path!r} no digest or size")
    return found


def file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def of_folder(folder: Path) -> Manifest:
    """What a folder holds now. Links are left out: what they lead to may be anybody's. Raises OSError, Unfit."""
    entries: list[Entry] = []
    for above, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(above) / name
            if path.is_symlink() or not path.is_file():
                continue
            status = path.stat()
            relative = path.relative_to(folder).as_posix()
            entries.append(Entry(relative, status.st_size, file_digest(path), bool(status.st_mode & 0o100)))
            if len(entries) > MAX_FILES:
                raise Unfit(f"it holds more than {MAX_FILES} files; pack them into fewer")
    return Manifest(sorted(entries, key=lambda entry: entry.path))


def of_path(path: Path) -> Manifest:
    """A folder, or a single file as a folder of one under its own name."""
    if path.is_symlink():
        raise Unfit(f"{path} is a link")
    if path.is_dir():
        return of_folder(path)
    if not path.is_file():
        raise Unfit(f"nothing lies at {path}")
    status = path.stat()
    return Manifest([Entry(path.name, status.st_size, file_digest(path), bool(status.st_mode & 0o100))], is_file=True)


def share(manifest: Manifest, rank: int, size: int) -> list[Entry]:
    """The files of one rank of ``size``: every file belongs to exactly one, and their number differs by one at most."""
    return manifest.files[rank :: max(1, size)]
