"""A port of 127.0.0.1: find a free one, and ask whether the control plane answers there."""

from __future__ import annotations

import socket
from http.client import HTTPConnection, HTTPException


class NoPort(Exception):
    """No port is free; the message says what helps."""


def free_port(wanted: int) -> int:
    """Return ``wanted`` or the next port that is free."""
    for port in range(wanted, min(wanted + 200, 65536)):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise NoPort(f"no port from {wanted} on is free on 127.0.0.1; name another one with --port")


def answers(port: int) -> bool:
    """Tell whether the control plane answers."""
    link = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        link.request("GET", "/api/v1/version")
        return link.getresponse().status < 500
    except (OSError, HTTPException):
        return False
    finally:
        link.close()
