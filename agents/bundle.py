"""Bundles: a stage's code, fetched once per digest, checked, and unpacked into each run folder."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import threading
from pathlib import Path

from agents.ends import Refusal, clause
from agents.protocol import BUNDLE_PATH
from agents.server import Channel, Server

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BundleUnusable(Refusal):
    """The bundle could not be fetched or unpacked."""


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
            raise BundleUnusable(clause("BundleNotFetched", bundle=sha256[:12], error=str(error))) from error
        finally:
            channel.close()
        if digest.hexdigest() != sha256:
            draft.unlink(missing_ok=True)
            raise BundleUnusable(f"bundle {sha256[:12]} arrived with another digest, {digest.hexdigest()[:12]}")
        draft.rename(path)

    def unpack(self, sha256: str, folder: Path) -> None:
        """Fetch if needed and unpack; members that would leave the folder, devices and set-id bits are refused."""
        path = self.fetch(sha256)
        try:
            with tarfile.open(path) as archive:
                if hasattr(tarfile, "data_filter"):
                    archive.extractall(folder, filter="data")
                else:
                    unpack_vetted(archive, folder)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise BundleUnusable(clause("BundleNotUnpacked", bundle=sha256[:12], error=str(error))) from error


def unpack_vetted(archive: tarfile.TarFile, folder: Path) -> None:
    """What the *data* filter does, for a Python before 3.11.4, which lacks it.

    Each member is judged just before it is written, with the links that are there by then resolved. Raises TarError for
    one that leads out of ``folder`` or is neither file, folder nor link; what came before it stays.
    """
    root = os.path.realpath(folder)
    for member in archive:
        member.name = member.name.lstrip("/")
        target = _inside(root, os.path.join(root, member.name), member.name)
        if member.issym():
            if os.path.isabs(member.linkname):
                raise tarfile.TarError(f"{member.name!r} links to an absolute path")
            _inside(root, os.path.join(os.path.dirname(target), member.linkname), member.name)
        elif member.islnk():
            _inside(root, os.path.join(root, member.linkname), member.name)
        elif not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is neither a file, a folder nor a link")
        # No set-id bits, nothing writable by others, and always readable by its owner.
        member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        archive.extract(member, root)


def _inside(root: str, path: str, name: str) -> str:
    """The real path, which must lie under ``root``."""
    real = os.path.realpath(path)
    if os.path.commonpath([root, real]) != root:
        raise tarfile.TarError(f"{name!r} would lie outside of the folder")
    return real
