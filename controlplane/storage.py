"""Files and objects in Django's storages; rows only refer to them.

The storages are ``bundles``, ``simulations``, ``traces``, and ``archive``, the logs of ended parts. Bytes are written
before a row refers to them, and removed after it. Growing logs are appended to, which object stores cannot do, so they
are files (:mod:`controlplane.jobs.logs`).
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
    """Return the free bytes of the disk with this control plane's files and logs."""
    folder = settings.LOGS
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def is_full() -> bool:
    """Whether the disk is so full that uploads and logs are refused, so that the rest can go on."""
    return free_bytes() < settings.MIN_FREE_BYTES


class BytesLost(Exception):
    """Raised if the storage lacks the bytes that a row refers to."""


class Incoming(File):
    """A file that is being received, on the same disk as the storage's files, to be moved there atomically."""

    def __init__(self) -> None:
        folder = None
        if not settings.STORAGE_URL:
            folder = settings.BLOBS
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().__init__(tempfile.NamedTemporaryFile(prefix=".incoming-", dir=folder, delete=False))  # noqa: SIM115

    def temporary_file_path(self) -> str:
        """The path from which Django's file storage moves it."""
        return str(self.name)

    def remove(self) -> None:
        """Close the file, and remove it unless it was moved."""
        self.close()
        Path(str(self.name)).unlink(missing_ok=True)


class DurableFiles(FileSystemStorage):
    """Files that get their name once they are complete and durable; existing ones are replaced atomically."""

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
    """A response that is generated in pieces in the request's thread; under ASGI Django's own generates all of it
    first."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces: Any = self.streaming_content
        while (piece := await sync_to_async(lambda: next(pieces, None))()) is not None:
            yield piece


class Download(FileResponse):
    """A file as a response that is read in pieces; under ASGI Django's own reads a file whole."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        file: Any = self.file_to_stream
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


def keep(storage: str, name: str, content: bytes) -> str:
    """Store these bytes under the name; return their SHA-256."""
    storages[storage].save(name, ContentFile(content))
    return hashlib.sha256(content).hexdigest()


def bytes_of(storage: str, name: str, sha256: str) -> bytes:
    """Return all bytes under a name. Raises :class:`BytesLost` if they are missing or differ from the stored ones."""
    try:
        with storages[storage].open(name) as file:
            content: bytes = file.read()
    except FileNotFoundError:
        raise BytesLost(f"{storage} has no {name}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BytesLost(f"{name} in {storage} has changed")
    return content


def forget(storage: str, *names: str) -> None:
    """Remove these names once the transaction has committed; failures are logged."""

    def remove() -> None:
        place: Storage = storages[storage]
        for name in filter(None, names):
            try:
                place.delete(name)
            except Exception as error:  # noqa: BLE001  each storage has errors of its own, and none may undo what is done
                log.warning("%s could not be removed from %s: %s", name, storage, error)

    transaction.on_commit(remove)
