"""The Unix socket on which accounts of this node submit, list, read and cancel local jobs.

One request and one answer for each connection, each one line of JSON. The kernel names the account on the other side
(SO_PEERCRED); nothing that a request says does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from agents.decode import BoundedDecoder, Undecodable
from agents.edge.allowance import Account, account_of
from agents.edge.job_file import JobRefused
from agents.edge.ledger import AcceptedJob
from agents.edge.local_jobs import LocalJobs
from agents.isolation.beneath import regular
from agents.one_request import OneRequestServer

log = logging.getLogger("switchyard.agent")
REQUEST_BYTES: Final = 256 << 10
LOG_BYTES: Final = 64 << 10
REQUEST_S: Final = 10.0
MOST_CLIENTS: Final = 32
MOST_LISTED: Final = 1_000


class Request(msgspec.Struct, frozen=True):
    """What an account asks. ``id`` is the job's; who submits chooses it, so that asking again is the same job."""

    do: Literal["submit", "list", "show", "logs", "cancel"]
    id: Annotated[str, Meta(max_length=64)] = ""
    job: dict[str, Any] = msgspec.field(default_factory=dict)
    stream: Literal["out", "err"] = "out"
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0


requests: Final = BoundedDecoder[Request](Request)


class ControlSocket(OneRequestServer):
    """Serves the local jobs of one node at ``path``."""

    def __init__(self, jobs: LocalJobs, path: Path) -> None:
        super().__init__(MOST_CLIENTS)
        self.jobs, self.path = jobs, path
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen; every account may connect, and is asked who it is. Raises OSError."""
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise OSError(f"{self.path} is there and is no socket")
            self.path.unlink()
        self._server = await asyncio.start_unix_server(self._meet, str(self.path), limit=REQUEST_BYTES, backlog=16)
        self.path.chmod(0o666)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(raw: bytes) -> bytes:
            told = await self._answer(_peer(writer.get_extra_info("socket")), raw)
            return msgspec.json.encode(told) + b"\n"

        await self.exchange(reader, writer, answer, end=b"\n", ask_s=REQUEST_S, answer_s=REQUEST_S)

    async def _answer(self, account: Account, raw: bytes) -> dict[str, Any]:
        try:
            request = requests.read(raw)
            does: dict[str, Callable[[Account, Request], Any]] = {
                "submit": self._submit, "list": self._list, "show": self._show, "logs": self._logs,
                "cancel": self._cancel,
            }  # fmt: skip
            return {"ok": await does[request.do](account, request)}
        except (JobRefused, Undecodable) as error:
            return {"refused": str(error)}
        except OSError as error:
            return {"failed": f"this node cannot write it: {error.strerror or error}"}
        except Exception:
            log.exception("a request about local jobs failed")
            return {"failed": "the agent failed; its log says why"}

    async def _submit(self, account: Account, request: Request) -> dict[str, Any]:
        return self._told(await self.jobs.submit(account, request.job, request.id))

    async def _list(self, account: Account, request: Request) -> list[dict[str, Any]]:
        return [self._told(job) for job in self.jobs.of(account)[:MOST_LISTED]]

    async def _show(self, account: Account, request: Request) -> dict[str, Any]:
        return self._told(self.jobs.found(account, request.id))

    async def _cancel(self, account: Account, request: Request) -> dict[str, Any]:
        return self._told(await self.jobs.cancel(account, request.id))

    async def _logs(self, account: Account, request: Request) -> dict[str, Any]:
        """Return some bytes of a log from an offset; there may be more while ``is_over`` is false."""
        job = self.jobs.found(account, request.id)
        part = self.jobs.node.parts.get(job.part)
        if part is None and job.exit is not None and job.number is not None:
            raise JobRefused(f"its log is with the control plane by now: yard logs {job.number}")
        data = b""
        if part is not None:
            data = await asyncio.to_thread(_piece, f"{part.intent.folder}/0.{request.stream}", request.offset)
        return {
            "data": base64.b64encode(data).decode(),
            "offset": request.offset + len(data),
            "is_over": job.exit is not None and len(data) < LOG_BYTES,
        }

    def _told(self, job: AcceptedJob) -> dict[str, Any]:
        now, end = self.jobs.ledger.now(), job.exit
        is_begun = job.begun is not None and self.jobs.state(job) != "PENDING"
        return {
            "id": job.id,
            "name": job.name,
            "project": job.project,
            "account": job.account,
            "state": self.jobs.state(job),
            "number": job.number,
            "note": self.jobs.notes.get(job.id, ""),
            "accepted_s": round(job.accepted.before(now), 1),
            "begun_s": round(job.begun.before(now), 1) if job.begun is not None and is_begun else None,
            "ran_s": end.ran_s if end is not None else None,
            "exit_code": end.code if end is not None else None,
            "cause": end.cause if end is not None else "",
            "detail": end.detail if end is not None else "",
            "devices": [f"{each.kind} {each.index}" for each in job.claims] if is_begun else [],
        }


def _peer(connection: Any) -> Account:
    _, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return account_of(uid, gid)


def _piece(path: str, offset: int) -> bytes:
    try:
        descriptor = regular(path)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, LOG_BYTES, offset)
    finally:
        os.close(descriptor)
