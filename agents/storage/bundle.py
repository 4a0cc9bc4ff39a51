"""Bundles: a stage's code, fetched once per digest, checked, and unpacked into each run folder by the stage's user."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from agents.decode import Undecodable, parse
from agents.ends import Refusal, clause
from agents.isolation import beneath
from agents.isolation.run_as import RunAs
from agents.link.server import Channel, Server
from agents.protocol import BUNDLE_PATH
from agents.storage import unpack
from agents.storage.last_use import used_now

PATIENCE_S: Final = 3600.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Its own modules are imported before it drops the rights to read them.
_PROGRAM = f"""
import sys
sys.path.append(sys.argv[1])
from {unpack.__name__} import main
sys.exit(main(int(sys.argv[2]), *sys.argv[3:]))
"""


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
        """Return the path of the packed bundle on this disk. Blocks; concurrent callers for one digest fetch it
        once."""
        if not _DIGEST.fullmatch(sha256):
            raise BundleUnusable(f'bundle "{sha256}" is not named by a sha256 in hexadecimal')
        path = self.folder / sha256
        with self._locks.setdefault(sha256, threading.Lock()):
            if not path.exists():
                self._download(sha256, path)
            used_now(path)
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

    def unpack(self, sha256: str, folder: Path, run_as: RunAs) -> None:
        """Fetch if needed and unpack as the stages' user into a folder that is empty, and closed to everybody else.

        Blocks. Raises BundleUnusable; see :mod:`agents.storage.unpack` for what is refused.
        """
        path = self.fetch(sha256)
        beneath.give(str(folder), 0o700, run_as.rights())
        top = os.open(folder, beneath.FOLDER)
        root = str(Path(__file__).resolve().parents[2])
        user = (
            "" if run_as.uid is None else str(run_as.uid),
            str(run_as.gid if run_as.gid is not None else run_as.uid),
        )
        try:
            with path.open("rb") as packed:
                done = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", _PROGRAM, root, str(top), *user],
                    stdin=packed,
                    capture_output=True,
                    pass_fds=[top],
                    env={"PATH": os.defpath},
                    cwd="/",
                    start_new_session=True,
                    timeout=PATIENCE_S,
                    check=False,
                )
            error = "" if done.returncode == 0 else _said(done)
        except (OSError, subprocess.TimeoutExpired) as fault:
            error = str(fault)
        finally:
            os.close(top)
        if error:
            raise BundleUnusable(clause("BundleNotUnpacked", bundle=sha256[:12], error=error))


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    try:
        return str(parse(done.stdout))
    except Undecodable:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"its unpacking ended with {done.returncode}{': ' if last else ''}{''.join(last)[:300]}"
