"""Files and folders by content: the digest of each file, and one digest of all, under which they are stored and
fetched.

The digest of a folder is that of its manifest: a JSON list of paths, sizes and digests, sorted by path. Two folders
with the same files have the same digest; a changed file changes it.
"""

from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path
from typing import Annotated, Final

import msgspec

from agents.decode import BoundedDecoder, Undecodable, path_text
from agents.ends import Refusal
from agents.isolation.beneath import Folder, regular
from agents.protocol import Counter, Name

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
PIECE: Final = 1 << 20
MAX_FILES: Final = 200_000
MOST_BYTES: Final = 64 << 20
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class UnfitFile(Refusal):
    """The file or folder cannot be stored by digest."""


class ManifestEntry(msgspec.Struct, frozen=True, array_like=True):
    """One file of a folder; ``path`` is relative, with ``/`` as separator, and stays within the folder."""

    path: Annotated[str, msgspec.Meta(max_length=4_096)]
    size: Counter
    sha256: Name
    executable: bool = False


class FolderManifest(msgspec.Struct, frozen=True):
    """The files of a folder, sorted by path; or a single file under its own name."""

    files: Annotated[list[ManifestEntry], msgspec.Meta(max_length=MAX_FILES)]
    is_file: bool = False

    def encode(self) -> bytes:
        return _encode(self)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)


_manifests = BoundedDecoder[FolderManifest](FolderManifest)


def decode(content: bytes) -> FolderManifest:
    """Decode a received manifest. Raises UnfitFile if a path would leave its folder."""
    try:
        found = _manifests.read(content)
    except Undecodable as error:
        raise UnfitFile(f"what arrived is no manifest: {error}") from error
    for entry in found.files:
        steps = entry.path.split("/")
        if not entry.path or any(step in ("", ".", "..") or "\0" in step for step in steps):
            raise UnfitFile(f"a manifest names {entry.path!r}, which does not stay in its folder")
        if not DIGEST.fullmatch(entry.sha256) or entry.size < 0:
            raise UnfitFile(f"a manifest gives {entry.path!r} no digest or size")
    return found


def read(path: Path) -> FolderManifest:
    """Decode the manifest in a file. Raises OSError, and UnfitFile also if it is longer than any manifest."""
    with open(regular(str(path)), "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UnfitFile(f"what arrived is no manifest: it has more than {MOST_BYTES >> 20} MiB")
    return decode(content)


def digest_of(descriptor: int) -> str:
    """Return the digest of an open file, and close it."""
    digest = hashlib.sha256()
    with open(descriptor, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def of(folder: Folder, name: str, most_bytes: int | None = None) -> FolderManifest:
    """Return the manifest of ``name`` in a folder: a folder, or a single file as a folder of one. Raises OSError,
    UnfitFile.

    Links are left out, because their targets may belong to others. ``most_bytes`` is checked before anything is read.
    """
    status = folder.status(name)
    if stat.S_ISLNK(status.st_mode):
        raise UnfitFile(f"{folder.path}/{name} is a link")
    if stat.S_ISREG(status.st_mode):
        above = name.rpartition("/")[0]
        found = [(name, status)]
    elif stat.S_ISDIR(status.st_mode):
        above = name
        found = []
        for each in folder.walk(name, most=MAX_FILES + 1):
            found.append(each)
            if len(found) > MAX_FILES:
                raise UnfitFile(f"it holds more than {MAX_FILES} files; pack them into fewer")
    else:
        raise UnfitFile(f"{folder.path}/{name} is neither a file nor a folder")
    size = sum(each.st_size for _, each in found)
    if most_bytes is not None and size > most_bytes:
        raise UnfitFile(f"it has {size} bytes, and this node keeps {most_bytes} at most")
    start = len(above) + 1 if above else 0
    if odd := next((path for path, _ in found if not path_text(path)), None):
        raise UnfitFile(f"it holds a file whose name is no UTF-8 text: {ascii(odd)[:200]}")
    entries = [
        ManifestEntry(path[start:], each.st_size, digest_of(folder.open(path)), bool(each.st_mode & 0o100))
        for path, each in found
    ]
    return FolderManifest(sorted(entries, key=lambda entry: entry.path), is_file=stat.S_ISREG(status.st_mode))


def of_path(path: Path) -> FolderManifest:
    """Like :func:`of`, for a path that only we can change."""
    try:
        with Folder(str(path.parent)) as folder:
            return of(folder, path.name)
    except FileNotFoundError:
        raise UnfitFile(f"nothing lies at {path}") from None


def share(manifest: FolderManifest, rank: int, size: int) -> list[ManifestEntry]:
    """Return the files of one rank of ``size``: every file belongs to exactly one, and their numbers differ by at most
    one."""
    return manifest.files[rank :: max(1, size)]
