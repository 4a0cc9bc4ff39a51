"""The folders beside the database, packed as tar files and unpacked.

Files are written once and then only grow or are removed. A copy after the database's snapshot therefore has all bytes
that its rows count. A file removed during the copy was to be removed anyway, or is a log that moved to the archive,
which is copied later.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.conf import settings
from django.core.files.storage import FileSystemStorage, storages

from controlplane.backup.manifest import BackupUnusable

_BLOCK: Final = 2**20
# Storages of Django without data of the installation.
_NOT_OURS: Final = frozenset({"default", "staticfiles"})


def folders(decisions: bool) -> dict[str, Path]:
    """Return the folders by the names of their pieces, in the order of copying."""
    # Logs before the archive that they move to.
    found = {"blobs": settings.BLOBS, "logs": settings.LOGS}
    for alias in sorted(settings.STORAGES.keys() - _NOT_OURS - found.keys()):
        if isinstance(storage := storages[alias], FileSystemStorage):
            found[alias] = Path(storage.location)
    if decisions:
        found["decisions"] = settings.DECISIONS
    once: dict[Path, str] = {}
    for name, path in found.items():
        once.setdefault(Path(path).resolve(), name)
    return {name: path for path, name in once.items()}


def external_storages() -> list[str]:
    """Return the names of storages that are not in a folder, such as S3."""
    return [
        alias
        for alias in sorted(settings.STORAGES.keys() - _NOT_OURS)
        if not isinstance(storages[alias], FileSystemStorage)
    ]


def pack(folder: Path, into: Path, without: set[Path]) -> int:
    """Pack the files below ``folder`` except those below ``without``; return how many.

    A missing folder is empty. Memory does not grow with their number.
    """
    count = 0
    with tarfile.open(into, "w|", bufsize=_BLOCK, format=tarfile.PAX_FORMAT) as archive:
        for path in _files(folder, without):
            try:
                # Links are not followed, so files of others are never read.
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            with os.fdopen(handle, "rb") as file:
                told = archive.gettarinfo(arcname=str(path.relative_to(folder)), fileobj=file)
                told.uid = told.gid = 0
                told.uname = told.gname = ""
                archive.addfile(told, _FixedSize(file, told.size))
            archive.members.clear()  # type: ignore[attr-defined]
            count += 1
    return count


def _files(folder: Path, without: set[Path]) -> Iterator[Path]:
    for where, inner, names in os.walk(folder):
        # Names with a leading dot are incomplete or foreign: a file gets its name once it is complete.
        inner[:] = sorted(
            name for name in inner if not name.startswith(".") and Path(where, name).resolve() not in without
        )
        for name in sorted(names):
            path = Path(where, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


class _FixedSize:
    """Reads exactly ``size`` bytes of a file, whatever happens to it meanwhile; missing bytes are zeros."""

    def __init__(self, file: object, size: int) -> None:
        self._file, self._left = file, size

    def read(self, most: int = -1) -> bytes:
        wanted = self._left if most < 0 else min(most, self._left)
        found = self._file.read(wanted)  # type: ignore[attr-defined]
        self._left -= wanted
        return bytes(found).ljust(wanted, b"\0")


def unpack(packed: Path, folder: Path) -> int:
    """Unpack the files of a piece below ``folder``, each atomically; return how many. Other files there stay.

    They get the owner of the folder. Raises :class:`BackupUnusable` for anything else than files.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat()
    count = 0
    with tarfile.open(packed, "r|", bufsize=_BLOCK) as archive:
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]
            name = Path(member.name)
            if not member.isreg() or name.is_absolute() or ".." in name.parts:
                raise BackupUnusable(f'{packed} holds "{member.name}", which is no file below its folder')
            content = archive.extractfile(member)
            assert content is not None
            _put(content, folder, name, owner)
            count += 1
    return count


def _put(content: object, folder: Path, name: Path, owner: os.stat_result) -> None:
    place = folder
    for step in name.parent.parts:
        place = place / step
        if not place.is_dir() or place.is_symlink():
            place.mkdir(mode=0o700)
            _give(place, owner)
    handle, temporary = tempfile.mkstemp(prefix=".restoring-", dir=place)
    try:
        with os.fdopen(handle, "wb") as file:
            while chunk := content.read(_BLOCK):  # type: ignore[attr-defined]
                file.write(chunk)
            file.flush()
            os.fdatasync(file.fileno())
        _give(Path(temporary), owner)
        os.replace(temporary, place / name.name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _give(path: Path, owner: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.lchown(path, owner.st_uid, owner.st_gid)
