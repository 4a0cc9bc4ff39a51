"""Interactive sessions inside running parts: each on a socket of its own, so that its bytes never delay a report.

The control plane names a session in a Desired; the agent dials, receives the command, lets the part's shim start it
(:mod:`agents.supervisor.session`) and passes bytes both ways, until the command, the part or the socket ends. Input and
output are neither stored nor logged here. A session with a port is a connection instead (:mod:`agents.link.forwards`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from agents import VERSION
from agents.decode import BoundedDecoder, Undecodable, digits, setting
from agents.ends import Unlaunchable, clause, say
from agents.link.forwards import forward
from agents.link.seen_orders import SeenOrders
from agents.link.server import Server
from agents.link.session_window import Broken, SessionWindow
from agents.protocol import (
    PIECE_BYTES,
    SESSION_MESSAGE_BYTES,
    SESSION_PATH,
    WINDOW_BYTES,
    OpenSession,
    Phase,
    SessionEnd,
    SessionOrder,
    SessionWord,
)
from agents.supervisor import procfs
from agents.supervisor import session as guest
from agents.supervisor.record import GUEST, shim_record, write_whole
from agents.tasks.journal import Intent
from agents.tasks.node import NodeTasks

log = logging.getLogger("switchyard.agent")

LET_IN_S: Final = 10.0
MOST: Final = 64
MOST_FORWARDED: Final = 160
# Input within the window in pieces of one byte each, and as many words to the command.
MOST_UNTAKEN_BYTES: Final = 4 * WINDOW_BYTES
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from agents.supervisor.session import run; sys.exit(run(sys.argv[2], sys.argv[3], int(sys.argv[4])))"
)
_PEER: Final = struct.Struct("3i")
_encode = msgspec.json.Encoder().encode
_asked = BoundedDecoder[OpenSession](OpenSession).read
_word = BoundedDecoder[SessionWord](SessionWord).read
read_end = BoundedDecoder[SessionEnd](SessionEnd).read


class Sessions:
    """The sessions of one node."""

    def __init__(self, node: NodeTasks, server: Server) -> None:
        self.node = node
        self.server = server
        self.most = setting("YARD_AGENT_SESSIONS", MOST)
        # By whether they are of ports.
        self._inside: Counter[bool] = Counter()
        self._seen = SeenOrders()
        self._door = asyncio.Lock()

    def begin(self, orders: list[SessionOrder]) -> None:
        """Dial for every new session."""
        for order in orders:
            if self._seen.is_new(order.id):
                self.node.spawn(self._serve(order.id))

    async def _serve(self, name: str) -> None:
        try:
            async with connect(
                self.server.socket_url(SESSION_PATH.format(session=name)),
                additional_headers=self.server.headers,
                compression=None,
                max_size=SESSION_MESSAGE_BYTES,
                open_timeout=10,
                close_timeout=1,
                ping_interval=10,
                ping_timeout=20,
                user_agent_header=f"switchyard-agent/{VERSION}",
            ) as line:
                async with asyncio.timeout(LET_IN_S):
                    asked = _asked(await line.recv())
                # Of the connections to a port, of which there are many, none is a line of the log.
                is_much = bool(asked.port and asked.stdin)
                log.log(logging.DEBUG if is_much else logging.INFO, "session %s enters part %s", name, asked.part)
                end = await self._run(line, name, asked)
                await line.send(_encode(SessionWord(end=end)), text=True)
                # Closing first could lose bytes in transit: the other side closes after it has received all.
                async with asyncio.timeout(LET_IN_S):
                    async for _ in line:
                        pass
        except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError, Broken, Undecodable) as error:
            log.info("session %s is over: %s", name, str(error) or type(error).__name__)

    async def _run(self, line: ClientConnection, name: str, asked: OpenSession) -> SessionEnd:
        most, is_port = (MOST_FORWARDED, True) if asked.port else (self.most, False)
        if self._inside[is_port] >= most:
            return SessionEnd(cut="refused", error=say([clause("NotEnteredMany", most=most)]))
        self._inside[is_port] += 1
        try:
            return await self._inside_of(line, name, asked)
        finally:
            self._inside[is_port] -= 1

    async def _inside_of(self, line: ClientConnection, name: str, asked: OpenSession) -> SessionEnd:
        part = self.node.parts.get(asked.part)
        if part is None or part.intent.epoch != asked.epoch or part.phase != Phase.RUNNING:
            return SessionEnd(cut="part", error=say([clause("NotEntered")]))
        if asked.port:
            return await forward(line, asked, self.node.executor.reach(part.intent).family)
        try:
            link, order = await self.enter(part.intent, name, asked)
        except Unlaunchable as error:
            return SessionEnd(cut="refused", error=str(error))
        return await _pass_on(line, link, order)

    async def enter(self, intent: Intent, name: str, asked: OpenSession) -> tuple[socket.socket, bytes]:
        """Start a session of this name in a part; return the socket to it, and the order that it waits for.

        Raises Unlaunchable.
        """
        try:
            order = self.node.executor.guest(intent, name, asked)
            async with self._door:
                link = await self._let_in(intent, name)
        except OSError as error:
            raise Unlaunchable(clause("HostFull", error=error.strerror or str(error))) from error
        return link, msgspec.json.encode(order)

    async def _let_in(self, intent: Intent, name: str) -> socket.socket:
        """Let the shim of a part start a session; return the socket to it. Raises Unlaunchable, OSError."""
        shim = (shim_record(intent.folder) or {}).get("pid", 0)
        folder = os.open(intent.folder, os.O_RDONLY | os.O_DIRECTORY)
        door, called = socket.socket(socket.AF_UNIX), f"session-{name[:36]}"
        door.setblocking(False)
        program = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT, intent.folder, called, str(shim)]
        try:
            door.bind(guest.address(folder, called))
            os.chmod(called, 0o600, dir_fd=folder)
            door.listen(1)
            write_whole(f"{intent.folder}/{GUEST}", {"argv": program, "env": {procfs.MARK: intent.part}})
            self.node.executor.reach(intent).wake()
            async with asyncio.timeout(LET_IN_S):
                while True:
                    link, _ = await asyncio.get_running_loop().sock_accept(door)
                    if _is_child_of(link, shim):
                        return link
                    link.close()
        except TimeoutError:
            raise Unlaunchable(clause("NotEnteredYet")) from None
        finally:
            door.close()
            for left in (called, GUEST):
                with contextlib.suppress(OSError):
                    os.unlink(left, dir_fd=folder)
            os.close(folder)


def _is_child_of(link: socket.socket, shim: int) -> bool:
    """Whether the program at the other end was started by the shim; a job may run as the same user."""
    pid, uid, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid == os.geteuid() and procfs.parent(pid) == shim


async def _pass_on(line: ClientConnection, link: socket.socket, order: bytes) -> SessionEnd:
    """Pass bytes both ways until one side ends; return how the command ended. Raises if the control plane ended it."""
    reader, writer = await asyncio.open_connection(sock=link)
    window = SessionWindow()
    up: asyncio.Task[SessionEnd] | None = None
    down: asyncio.Task[None] | None = None
    try:
        writer.write(framed(guest.ORDER, order))
        up = asyncio.create_task(_up(reader, line, window))
        down = asyncio.create_task(_down(line, writer, window))
        done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        if up in done:
            return up.result()
        down.result()
        raise Broken("the control plane ended it")
    finally:
        tasks = [task for task in (up, down) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # This ends the process at the other end, with all that it started. What it has not taken would hold up a close.
        writer.transport.abort()


async def _up(reader: asyncio.StreamReader, line: ClientConnection, window: SessionWindow) -> SessionEnd:
    """Pass the command's output on to the control plane."""
    while True:
        try:
            kind, content = await heard(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            # The part was ended, and the session with it.
            return SessionEnd(cut="part")
        if kind in (guest.STDOUT, guest.STDERR):
            await window.take(len(content))
            await line.send(bytes((kind,)) + content)
        elif kind == guest.TAKEN:
            await line.send(_encode(SessionWord(taken=digits(content) or 0)), text=True)
        elif kind == guest.END:
            end = read_end(content)
            return msgspec.structs.replace(end, cut="refused") if end.error else end


async def _down(line: ClientConnection, writer: asyncio.StreamWriter, window: SessionWindow) -> None:
    """Pass the caller's input on to the command; it never waits for that, or what the caller has taken would not be
    heard."""
    async for message in line:
        if isinstance(message, bytes):
            if not message or message[0] != guest.STDIN or len(message) > PIECE_BYTES + 1:
                raise Broken("a message that is no input")
            writer.write(framed(guest.STDIN, message[1:]))
        else:
            word = _word(message)
            window.give(word.taken)
            if word.signal or (word.rows and word.columns):
                told = {"rows": word.rows, "columns": word.columns, "signal": word.signal}
                writer.write(framed(guest.WORD, _encode(told)))
        if writer.transport.get_write_buffer_size() > MOST_UNTAKEN_BYTES:
            raise Broken("more input than was allowed")


async def heard(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the next message of a session's process. Raises Broken, and IncompleteReadError or ConnectionError once
    it is gone."""
    kind, length = guest.HEAD.unpack(await reader.readexactly(guest.HEAD.size))
    if length > guest.MOST_BYTES:
        raise Broken(f"a message of {length} bytes")
    return kind, await reader.readexactly(length)


def framed(kind: int, content: bytes) -> bytes:
    """Return a message to a session's process."""
    return guest.HEAD.pack(kind, len(content)) + content
