"""Asks the agent of this host about jobs that are submitted on the host itself, through its Unix socket."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from typing import Any, Final

from switchyard.problem import ApiProblem, NotFound, Unreachable

USUAL: Final = "/run/switchyard/edge.sock"
ANSWER_S: Final = 30.0
LONGEST: Final = 8 << 20
TRIES: Final = 3


def path_of(given: str = "") -> str:
    """Return the socket: the one given, that of ``YARD_EDGE_SOCKET``, or the usual one."""
    return given or os.environ.get("YARD_EDGE_SOCKET", "") or USUAL


def uuid7(at_s: float | None = None) -> str:
    """Return a new id that sorts by time (RFC 9562, version 7): now, or so many seconds since the epoch."""
    at_ms = int((time.time() if at_s is None else at_s) * 1000)
    bits = int.from_bytes(at_ms.to_bytes(6, "big") + os.urandom(10), "big")
    bits = bits & ~(0xF << 76) | 7 << 76
    return str(uuid.UUID(int=bits & ~(3 << 62) | 2 << 62))


def ask(path: str, do: str, **fields: Any) -> Any:
    """Return the answer to one request. A request without an answer is repeated: the same twice is the same once.

    Raises Unreachable without an agent there, NotFound for a job that is not there, ApiProblem for a refusal.
    """
    request = json.dumps({"do": do, **fields}).encode() + b"\n"
    for left in range(TRIES - 1, -1, -1):
        try:
            answer = json.loads(_exchange(path, request))
            break
        except (OSError, ValueError) as error:
            if not left:
                why = getattr(error, "strerror", None) or "it did not answer"
                hint = "the operator of this node says with --edge whether, and where, its agent takes jobs"
                raise Unreachable(f"{path}: {why}; {hint}") from None
            time.sleep(0.5)
    if "ok" in answer:
        return answer["ok"]
    if "failed" in answer:
        raise ApiProblem(500, {"detail": str(answer["failed"]), "code": "node_failed"})
    said = str(answer.get("refused", "it refused"))
    if said.startswith("there is no job"):
        raise NotFound(said)
    raise ApiProblem(409, {"detail": said, "code": "refused_by_node"})


def _exchange(path: str, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(ANSWER_S)
        link.connect(path)
        link.sendall(request)
        answer = b""
        while piece := link.recv(65_536):
            answer += piece
            if len(answer) > LONGEST:
                raise ValueError("the answer is too long")
    return answer
