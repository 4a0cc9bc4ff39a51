"""TCP connections to ports on which a running part listens, each on the socket of a session of its own.

Only the part's own ports are reached (:mod:`agents.supervisor.listeners`): neither the agent, nor other parts, nor
what else the host or its network offers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn

import msgspec
from websockets.asyncio.client import ClientConnection

from agents.decode import BoundedDecoder
from agents.ends import clause, say
from agents.link.session_window import Broken, SessionWindow
from agents.protocol import PIECE_BYTES, WINDOW_BYTES, OpenSession, SessionEnd, SessionWord
from agents.supervisor.listeners import Listener, listener_at, listeners_of

CONNECT_S: Final = 5.0
MOST_TOLD: Final = 20
# Of their own: looks at stages with many files must not hold up what else of the link runs in threads.
lookers: Final = ThreadPoolExecutor(2, "look")
_STDIN, _STDOUT = b"\0", b"\1"
_encode = msgspec.json.Encoder().encode
_word = BoundedDecoder[SessionWord](SessionWord).read


async def forward(line: ClientConnection, asked: OpenSession, family: Callable[[], list[int]]) -> SessionEnd:
    """Connect the socket of a session to a port of the part with these processes, until one side closes.

    Without ``stdin`` no connection is made: whoever asked holds the session, in which others connect. An empty piece
    tells that the port is there. Raises Broken if the control plane ended it.
    """
    found = await _look(asked.port, family)
    if isinstance(found, SessionEnd):
        return found
    if not asked.stdin:
        await line.send(_STDOUT)
        async for _ in line:
            pass
        raise Broken("the control plane ended it")
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(found.address, asked.port, limit=PIECE_BYTES)
    except (OSError, TimeoutError) as error:
        told = getattr(error, "strerror", None) or "it does not answer"
        return SessionEnd(cut="refused", error=say([clause("PortSilent", port=asked.port, error=told)]))
    try:
        # Somebody else may have listened there when the connection was made.
        again = await _look(asked.port, family)
        if again != found:
            return (
                again if isinstance(again, SessionEnd) else SessionEnd(cut="refused", error=_not_there(asked.port, {}))
            )
        await line.send(_STDOUT)
        return await _joined(line, reader, writer)
    finally:
        # What a stage that does not read has not taken would hold up a close.
        writer.transport.abort()


async def _look(port: int, family: Callable[[], list[int]]) -> Listener | SessionEnd:
    return await asyncio.get_running_loop().run_in_executor(lookers, _found, port, family)


def _found(port: int, family: Callable[[], list[int]]) -> Listener | SessionEnd:
    """Return where the part listens on this port, or why it cannot be reached."""
    processes = family()
    if found := listener_at(port, processes):
        return found
    return SessionEnd(cut="refused", error=_not_there(port, listeners_of(processes)))


def _not_there(port: int, ports: dict[int, Listener]) -> str:
    if not ports:
        return say([clause("ListensNowhere", port=port)])
    told = ", ".join(str(each) for each in sorted(ports)[:MOST_TOLD])
    return say([clause("NotListening", port=port, ports=told)])


async def _joined(line: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SessionEnd:
    window, typed = SessionWindow(), _Input()
    up = asyncio.create_task(_up(reader, line, window))
    others = (asyncio.create_task(_down(line, typed, window)), asyncio.create_task(_write(line, writer, typed)))
    try:
        done, _ = await asyncio.wait((up, *others), return_when=asyncio.FIRST_COMPLETED)
        if up in done:
            return up.result()
        for task in done:
            task.result()
        raise Broken("the control plane ended it")
    finally:
        for task in (up, *others):
            task.cancel()
        await asyncio.gather(up, *others, return_exceptions=True)


class _Input:
    """What the caller sent and the part has not taken: at most ``WINDOW_BYTES``."""

    def __init__(self) -> None:
        self.left = bytearray()
        self.is_over = False
        self.more = asyncio.Event()

    def add(self, piece: bytes) -> None:
        """Keep a piece; an empty one is the end. Raises Broken after the end, and if it is more than was allowed."""
        if self.is_over:
            raise Broken("input after its end")
        if len(self.left) + len(piece) > WINDOW_BYTES:
            raise Broken("more input than was allowed")
        self.left += piece
        self.is_over = not piece
        self.more.set()


async def _up(reader: asyncio.StreamReader, line: ClientConnection, window: SessionWindow) -> SessionEnd:
    """Pass on what the part sends, until it has sent all."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(PIECE_BYTES):
            await window.take(len(piece))
            await line.send(_STDOUT + piece)
    return SessionEnd(code=0)


async def _down(line: ClientConnection, typed: _Input, window: SessionWindow) -> None:
    """Read what the caller sends; it never waits for the part, or what the caller has taken would not be heard."""
    async for message in line:
        if not isinstance(message, bytes):
            window.give(_word(message).taken)
        elif message[:1] != _STDIN or len(message) > PIECE_BYTES + 1:
            raise Broken("a message that is no input")
        else:
            typed.add(message[1:])


async def _write(line: ClientConnection, writer: asyncio.StreamWriter, typed: _Input) -> NoReturn:
    """Pass on to the part what the caller sent. It goes on after the end: the part may answer yet."""
    while True:
        await typed.more.wait()
        typed.more.clear()
        with contextlib.suppress(ConnectionError):  # the other direction tells of its end
            while piece := bytes(typed.left[:PIECE_BYTES]):
                try:
                    writer.write(piece)
                    await writer.drain()
                finally:
                    del typed.left[: len(piece)]
                await line.send(_encode(SessionWord(taken=len(piece))), text=True)
            if typed.is_over:
                writer.write_eof()
