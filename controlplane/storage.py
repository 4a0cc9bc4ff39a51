"""Bytes that lie in files or in an object store, by Django's storages; rows only point to them.

A storage's name says what lies there: ``bundles``, ``simulations``, and ``archive``, the logs of parts that have ended.
Bytes are there before a row points to them, and go after it. Logs that grow are appended to, which no object store can
do: they are files (:mod:`controlplane.jobs.logs`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files.base import ContentFile, File
from django.core.files.storage import FileSystemStorage, Storage, storages
from django.db import transaction
from django.http import FileResponse, StreamingHttpResponse

log = logging.getLogger(__name__)

PIECE: Final = 256 * 1024


def free_bytes() -> int:
    """How much room the disk has on which files and logs of this control plane lie."""
    folder = settings.LOGS
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def is_full() -> bool:
    """Whether the disk has so little room that uploads and logs are refused, so that the rest can go on."""
    return free_bytes() < settings.MIN_FREE_BYTES


class BytesLost(Exception):
    """Raised where the storage has not the bytes that a row points to."""


class Incoming(File):
    """A file that is being received, on the same disk as the storage's files: it is moved there in one step."""

    def __init__(self) -> None:
        folder = None
        if not settings.STORAGE_URL:
            folder = settings.BLOBS
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().__init__(tempfile.NamedTemporaryFile(prefix=".incoming-", dir=folder, delete=False))  # noqa: SIM115

    def temporary_file_path(self) -> str:
        """Where it lies; Django's storage of files moves it from there."""
        return str(self.name)

    def remove(self) -> None:
        """Close the file, and remove it where nobody has moved it."""
        self.close()
        Path(str(self.name)).unlink(missing_ok=True)


class DurableFiles(FileSystemStorage):
    """Files that have their name once they are whole and on the disk; what was there before is replaced in one step."""

    def _save(self, name: str, content: File[bytes]) -> str:
        path = Path(self.path(name))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".saving-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                for chunk in content.chunks():
                    file.write(chunk)
                file.flush()
                os.fdatasync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return name


class Pieces(StreamingHttpResponse):
    """An answer that is made piece by piece in the request's thread; Django's own makes all of it first under ASGI."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces: Any = self.streaming_content
        while (piece := await sync_to_async(lambda: next(pieces, None))()) is not None:
            yield piece


class Download(FileResponse):
    """A file as an answer that is read piece by piece; Django's own reads a file whole under ASGI."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        file: Any = self.file_to_stream
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


def keep(storage: str, name: str, content: bytes) -> str:
    """Keep these bytes under the name; their SHA-256."""
    storages[storage].save(name, ContentFile(content))
    return hashlib.sha256(content).hexdigest()


def bytes_of(storage: str, name: str, sha256: str) -> bytes:
    """All bytes under a name. Raises :class:`BytesLost` where they are not there, or not those that were kept."""
    try:
        with storages[storage].open(name) as file:
            content: bytes = file.read()
    except FileNotFoundError:
        raise BytesLost(f"{storage} has no {name}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BytesLost(f"{name} in {storage} has changed")
    return content


def forget(storage: str, *names: str) -> None:
    """Remove what lies under these names once the transaction is done; what cannot be removed stays, and is logged."""

    def remove() -> None:
        place: Storage = storages[storage]
        for name in filter(None, names):
            try:
                place.delete(name)
            except Exception as error:  # noqa: BLE001  each storage has errors of its own, and none may undo what is done
                log.warning("%s could not be removed from %s: %s", name, storage, error)

    transaction.on_commit(remove)
