"""Bundles: a stage's code, fetched once per digest, checked, and unpacked into each run folder."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import threading
from pathlib import Path

from agents.protocol import BUNDLE_PATH
from agents.server import Channel, Server

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BundleUnusable(Exception):
    """The bundle could not be fetched or unpacked; the text is a sentence for the job's owner."""


class BundleCache:
    """Bundles by digest in one folder. Safe to use from several threads."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self._locks: dict[str, threading.Lock] = {}
        folder.mkdir(mode=0o700, exist_ok=True)

    def fetch(self, sha256: str) -> Path:
        """The packed bundle on this disk. Blocks; two callers of one digest fetch it once."""
        if not _DIGEST.fullmatch(sha256):
            raise BundleUnusable(f'bundle "{sha256}" is not named by a sha256 in hexadecimal')
        path = self.folder / sha256
        with self._locks.setdefault(sha256, threading.Lock()):
            if not path.exists():
                self._download(sha256, path)
            os.utime(path)
        return path

    def _download(self, sha256: str, path: Path) -> None:
        draft = path.with_suffix(".draft")
        digest = hashlib.sha256()
        channel = Channel(self.server, timeout_s=60.0)
        try:
            with draft.open("wb") as file:
                for piece in channel.download(BUNDLE_PATH.format(sha256=sha256)):
                    digest.update(piece)
                    file.write(piece)
        except Exception as error:
            draft.unlink(missing_ok=True)
            raise BundleUnusable(f"bundle {sha256[:12]} could not be fetched: {error}") from error
        finally:
            channel.close()
        if digest.hexdigest() != sha256:
            draft.unlink(missing_ok=True)
            raise BundleUnusable(f"bundle {sha256[:12]} arrived with another digest, {digest.hexdigest()[:12]}")
        draft.rename(path)

    def unpack(self, sha256: str, folder: Path) -> None:
        """Fetch if needed and unpack; members that would leave the folder, devices and set-id bits are refused."""
        path = self.fetch(sha256)
        if not hasattr(tarfile, "data_filter"):
            raise BundleUnusable("this agent's Python cannot unpack bundles safely; it needs 3.11.4 or newer")
        try:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise BundleUnusable(f"bundle {sha256[:12]} could not be unpacked: {error}") from error
