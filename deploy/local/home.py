"""The folder that holds all state of a local stack, and the secrets inside it.

The folder is ``YARD_HOME`` or ``~/.switchyard``::

    secrets/   generated keys, 0600            postgres/  the database cluster
    run/       sockets and files of the parts  valkey/    working folder of the broker
    log/       one file per part               blobs/     bundles by sha256
    shared/    checkpoints and outputs         agents/    one folder per agent
    static/    files of the pages, collected   decisions/ the decision log
    stack.json    what runs now, 0600          client.toml   address and token for ``yard``, 0600

Where root starts the stack, the parts run as another user (:mod:`deploy.local.identity`), who owns the folders of
``SERVED``. Root writes nothing there but by a new file that takes the old one's place.
"""

from __future__ import annotations

import base64
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

# sun_path holds 108 bytes with its closing zero; the longest socket name that is put into the folder is PostgreSQL's
# lock file, ".s.PGSQL.5432.lock".
_LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.5432.lock")

SERVED = ("secrets", "run", "blobs", "decisions", "valkey", "static")
FOLDERS = (*SERVED, "log", "shared", "agents")


class HomeUnusable(Exception):
    """The state folder cannot be used; the message says why and what would help."""


@dataclass(frozen=True)
class Home:
    """One state folder. It belongs to one stack at a time: :mod:`deploy.local.keeper` holds its lock."""

    path: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """Return the folder in ``YARD_HOME``, else ``~/.switchyard``."""
        named = environ.get("YARD_HOME")
        return cls(Path(named).expanduser().absolute() if named else Path.home() / ".switchyard")

    @property
    def secret_key_file(self) -> Path:
        return self.secrets / "django.key"

    @property
    def router_key_file(self) -> Path:
        return self.secrets / "router.key"

    @property
    def secrets_keys_file(self) -> Path:
        return self.secrets / "secrets.keys"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

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
        """Return the private folder for Unix sockets: ``run/`` if its path is short enough, else a short one
        elsewhere."""
        if len(os.fsencode(self.run)) <= _LONGEST_SOCKET_FOLDER:
            return self.run
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]
        # Root's own is closed to the parts' user.
        runtime = os.environ.get("XDG_RUNTIME_DIR") if os.getuid() != 0 else None
        if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK | os.X_OK):
            return Path(runtime) / f"yard-{digest}"
        return Path("/tmp") / f"yard-{os.getuid()}-{digest}"

    def open(self) -> None:
        """Create the folder itself. Raises :class:`HomeUnusable` if it belongs to somebody else."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _own(self.path, {os.getuid()})
        except OSError as error:
            raise self._unusable(error) from error

    def prepare(self, owner: tuple[int, int] | None = None) -> None:
        """Create the folder and everything in it that a stack needs before it starts; idempotent.

        ``owner`` (uid, gid) gets the folders of the parts, if that is not the user who starts the stack. Raises
        :class:`HomeUnusable` if it belongs to somebody else or cannot be written.
        """
        self.open()
        uid, gid = owner or (os.getuid(), os.getgid())
        try:
            for folder in (*(self.path / name for name in FOLDERS), self.sockets):
                # An earlier version gave its sockets to the user of the stages. Nothing there is worth keeping.
                if os.getuid() == 0 and folder in {self.run, self.sockets} and _owner(folder) not in {None, 0, uid}:
                    shutil.rmtree(folder)
                folder.mkdir(mode=0o700, exist_ok=True)
            if not self.secret_key_file.exists():
                write_private(self.secret_key_file, secrets.token_urlsafe(64) + "\n")
            if not self.router_key_file.exists():
                write_private(self.router_key_file, secrets.token_urlsafe(48) + "\n")
            if not self.secrets_keys_file.exists():
                write_private(self.secrets_keys_file, new_secrets_key())
            _own(self.sockets, {os.getuid(), uid})
            for folder in (*(self.path / name for name in SERVED), self.sockets):
                give(folder, uid, gid)
            _try_socket(self.sockets)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> HomeUnusable:
        return HomeUnusable(
            f"the state folder {self.path} cannot be used: {error.strerror}: {error.filename}; "
            "set YARD_HOME to a folder that you may write"
        )

    def clear(self) -> None:
        """Delete everything in the folder that a stack created; only while no stack runs on it."""
        for name in (*FOLDERS, "postgres", "stack.json", "client.toml"):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _owner(folder: Path) -> int | None:
    try:
        return folder.lstat().st_uid
    except FileNotFoundError:
        return None


def give(folder: Path, uid: int, gid: int) -> None:
    """Make this user the owner of ``folder`` and all below it. No symlink is followed.

    Only for a folder that no job could write, and whose parent belongs to the caller.
    """
    if _owner(folder) == uid:
        return
    for _, folders, files, handle in os.fwalk(folder, topdown=False):
        for name in folders + files:
            os.chown(name, uid, gid, dir_fd=handle, follow_symlinks=False)
    # Last, so that an interrupted walk is started again.
    os.lchown(folder, uid, gid)


def _own(folder: Path, owners: set[int]) -> None:
    """Make ``folder`` private, or raise :class:`HomeUnusable` if it is not a folder of these users."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise HomeUnusable(f"{folder} must be a folder that belongs to the user who starts the stack")
    # As root, stages may run as another user and must reach their own folders below this one (see identity.py);
    # everything that is private lies in sub-folders of mode 0700.
    allowed = 0o711 if os.getuid() == 0 else 0o700
    if stat.S_IMODE(found.st_mode) & ~allowed:
        folder.chmod(0o700)


def _try_socket(folder: Path) -> None:
    """Raise :class:`HomeUnusable` if the file system of ``folder`` does not support Unix sockets."""
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


def new_secrets_key() -> str:
    """Return a line for the file of ``YARD_SECRETS_KEY_FILE``: 32 random bytes in base64."""
    return base64.b64encode(secrets.token_bytes(32)).decode() + "\n"


def write_private(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Write ``text`` to ``path`` with mode 0600 in one step: a reader sees the old file or the new one, never half.

    ``owner`` (uid, gid) gets the file. A link at ``path`` is replaced, never followed.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            if owner is not None:
                os.fchown(handle, *owner)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
