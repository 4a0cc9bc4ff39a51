"""The manifest of a backup: its files with sizes and digests, and the release that made it.

It is written last, and the folder gets its name after it: a folder without a manifest is no backup.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec

NAME: Final = "manifest.json"
FORMAT: Final = 1
DATABASE: Final = "database.dump"
KEYS: Final = "keys.sealed"
_CHUNK: Final = 2**20


class BackupUnusable(Exception):
    """Raised if a backup cannot be made, read or restored; the message tells what would be accepted."""


class Piece(msgspec.Struct, frozen=True):
    """A file of the backup."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``made_at`` is the database's clock just before its snapshot. ``migrations`` are the last ones of each app.
    ``elsewhere`` names storages that are not in the backup, because they are not in a folder. ``rows`` are those of
    each table in the dump; backups of releases that did not count them have none."""

    format: int
    version: str
    cluster: str
    made_at: datetime
    postgres: str
    migrations: dict[str, list[str]]
    pieces: list[Piece]
    elsewhere: list[str] = []
    rows: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}

    def write(self, folder: Path) -> None:
        """Write it to ``folder``."""
        (folder / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read that of ``folder``. Raises :class:`BackupUnusable`."""
        try:
            found = msgspec.json.decode((folder / NAME).read_bytes(), type=cls)
        except FileNotFoundError:
            raise BackupUnusable(f"{folder} holds no {NAME}: it is no backup, or one that was not finished") from None
        except OSError as error:
            raise BackupUnusable(f"{folder / NAME} cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BackupUnusable(f"{folder / NAME} is no manifest of a backup: {error}") from None
        if found.format != FORMAT:
            raise BackupUnusable(f"{folder} has format {found.format}; this release reads format {FORMAT}")
        for piece in found.pieces:
            if Path(piece.name).name != piece.name:
                raise BackupUnusable(f'{folder / NAME} names "{piece.name}", which is no file of its folder')
        return found

    def names(self) -> set[str]:
        """Return the names of the files."""
        return {piece.name for piece in self.pieces}

    def check(self, folder: Path) -> None:
        """Compare each file with its size and digest. Raises :class:`BackupUnusable`."""
        for piece in self.pieces:
            path = folder / piece.name
            try:
                found = digest(path)
            except OSError as error:
                raise BackupUnusable(f"{path} cannot be read: {error.strerror}") from None
            if found.size != piece.size:
                raise BackupUnusable(f"{path} has {found.size} bytes; {piece.size} were written")
            if found.sha256 != piece.sha256:
                raise BackupUnusable(f"{path} is not what was written: its sha256 is {found.sha256}")


def digest(path: Path) -> Piece:
    """Return size and digest of a file, read in pieces."""
    whole, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            whole.update(chunk)
            size += len(chunk)
    return Piece(path.name, size, whole.hexdigest())
