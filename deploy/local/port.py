"""Finds a free port of 127.0.0.1, and queries the control plane there."""

from __future__ import annotations

import json
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
    """Whether the control plane answers."""
    return _get(port, "/version") is not None


def listens(port: int) -> bool:
    """Whether somebody accepts connections."""
    with socket.socket() as link:
        link.settimeout(2)
        return link.connect_ex(("127.0.0.1", port)) == 0


def ready_nodes(port: int, token: str) -> set[str]:
    """Return the names of the nodes that accept work."""
    found: set[str] = set()
    path: str | None = "/nodes?state=READY&limit=200"
    while path:
        said = _get(port, path, token)
        if not isinstance(said, dict):
            break
        found |= {node["name"] for node in said.get("results", [])}
        path = (said.get("next") or "").partition("/api/v1")[2]
    return found


def _get(port: int, path: str, token: str = "") -> object:
    """Return the JSON answer of a GET below ``/api/v1``; None without an answer, or with an error of the server."""
    link = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        link.request("GET", "/api/v1" + path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = link.getresponse()
        return json.loads(answer.read()) if answer.status < 500 else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        link.close()
