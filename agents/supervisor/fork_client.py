"""The agent's side of the fork server: starts it, restarts it when it dies, and sends it the folders of parts to
start."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agents.supervisor import fork_server

# Imported to be compiled: a fork server that had to do it would keep what that takes, and each of its shims would.

_PROGRAM = (
    f"import sys; sys.path.append(sys.argv[1]); from {fork_server.__name__} import serve; serve(int(sys.argv[2]))"
)


class ForkClient:
    """One fork server process. It gets a fixed environment, so nothing of a job reaches it.

    ``on_refusal(folder, reason)`` is called when a fork failed. When the fork server dies, requests may be lost with
    it: the executor repeats requests that nobody took, which is safe because a part can be taken only once.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.on_refusal: Callable[[str, str], None] = lambda folder, reason: None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._queue: list[bytes] = []
        self._rest = b""

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        with self.log.open("ab") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, root, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={"PATH": os.defpath, **{k: v for k, v in os.environ.items() if k == "AGENT_BOOT_ID_PATH"}},
                start_new_session=True,
                cwd="/",
            )
        ours.setblocking(False)
        self._socket = ours
        self._rest = b""
        asyncio.get_running_loop().add_reader(ours, self._read)

    def fork(self, folder: Path) -> None:
        """Request a shim. Never blocks; all requests of one turn of the event loop are sent together."""
        if self._socket is None:
            return
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._write)
        self._queue.append(os.fsencode(folder) + b"\n")

    def _write(self) -> None:
        """Send what is queued; what does not fit into the socket's buffer is sent when there is space."""
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        content = b"".join(self._queue)
        try:
            sent = self._socket.send(content) if content else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            return
        rest = content[sent:]
        self._queue = [rest] if rest else []
        if rest:
            loop.add_writer(self._socket, self._write)
        else:
            loop.remove_writer(self._socket)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            content = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self.close()
            self._queue.clear()
            self.start()
            return
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            folder, _, reason = line.partition(b"\0")
            self.on_refusal(os.fsdecode(folder), reason.decode(errors="replace"))

    def close(self) -> None:
        """Close the connection, which ends the fork server; shims continue."""
        if self._socket is not None:
            self._write()
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
