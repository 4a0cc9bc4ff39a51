"""The folder that holds all state of a local stack, and the secrets inside it.

The folder is ``YARD_HOME`` or ``~/.switchyard``::

    secrets/   generated keys, 0600            postgres/  the database cluster
    run/       sockets, lock, what runs now    valkey/    working folder of the broker
    log/       one file per part               blobs/     bundles by sha256
    shared/    checkpoints and outputs         agents/    one folder per agent
    static/    files of the pages, where somebody collects them
    client.toml   address and token for ``yard``, 0600
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.leash import NOBODY

# sun_path holds 108 bytes with its closing zero; the longest socket name that is put into the folder is PostgreSQL's
# lock file, ".s.PGSQL.5432.lock".
_LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.5432.lock")

FOLDERS = ("secrets", "run", "log", "blobs", "shared", "agents", "valkey", "static")


class HomeUnusable(Exception):
    """The state folder cannot be used; the message says why and what would help."""


@dataclass(frozen=True)
class Home:
    """One state folder. Two stacks never share one: :mod:`deploy.local.keeper` holds its lock."""

    path: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """Return the folder that ``YARD_HOME`` names, else ``~/.switchyard``."""
        named = environ.get("YARD_HOME")
        return cls(Path(named).expanduser().absolute() if named else Path.home() / ".switchyard")

    @property
    def secret_key_file(self) -> Path:
        return self.path / "secrets" / "django.key"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def valkey(self) -> Path:
        return self.path / "valkey"

    @property
    def logs(self) -> Path:
        return self.path / "log"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def blobs(self) -> Path:
        return self.path / "blobs"

    @property
    def shared(self) -> Path:
        return self.path / "shared"

    @property
    def agents(self) -> Path:
        return self.path / "agents"

    @property
    def client_file(self) -> Path:
        return self.path / "client.toml"

    @property
    def sockets(self) -> Path:
        """The private folder for Unix sockets: ``run/`` where its path is short enough, else a short one elsewhere."""
        if len(os.fsencode(self.run)) <= _LONGEST_SOCKET_FOLDER:
            return self.run
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK | os.X_OK):
            return Path(runtime) / f"yard-{digest}"
        return Path("/tmp") / f"yard-{os.getuid()}-{digest}"

    def prepare(self) -> None:
        """Make the folder and everything in it that a stack needs before it starts; may be called again at any time.

        Raises :class:`HomeUnusable` where it belongs to somebody else or cannot be written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _own(self.path)
            for name in FOLDERS:
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
            self.sockets.mkdir(mode=0o700, exist_ok=True)
            _own(self.sockets)
            _try_socket(self.sockets)
            if not self.secret_key_file.exists():
                write_private(self.secret_key_file, secrets.token_urlsafe(64) + "\n")
        except OSError as error:
            raise HomeUnusable(
                f"the state folder {self.path} cannot be used: {error.strerror}: {error.filename}; "
                "set YARD_HOME to a folder that you may write"
            ) from error

    def clear(self) -> None:
        """Delete everything in the folder that a stack made; only while no stack runs on it."""
        for name in (*FOLDERS, "postgres", "client.toml"):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _own(folder: Path) -> None:
    """Make ``folder`` private, or raise :class:`HomeUnusable` where it is not this user's own folder."""
    found = folder.lstat()
    # Where root may not use user namespaces, PostgreSQL runs as uid 65534 and owns the folder of its socket.
    owners = {0, NOBODY} if os.getuid() == 0 else {os.getuid()}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise HomeUnusable(f"{folder} must be a folder that belongs to the user who starts the stack")
    # As root, stages may run as another user and must reach their own folders below this one (see identity.py);
    # everything that is private lies in sub-folders of mode 0700.
    allowed = 0o711 if os.getuid() == 0 else 0o700
    if stat.S_IMODE(found.st_mode) & ~allowed:
        folder.chmod(0o700)


def _try_socket(folder: Path) -> None:
    """Raise :class:`HomeUnusable` where the file system of ``folder`` holds no Unix sockets."""
    path = Path(tempfile.mktemp(prefix=".try-", dir=folder))
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.bind(str(path))
        except OSError as error:
            raise HomeUnusable(
                f"no Unix socket can be made in {folder} ({error.strerror}); set YARD_HOME to a folder on a local disk"
            ) from error
        finally:
            path.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` with mode 0600 in one step: a reader sees the old file or the new one, never half."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
