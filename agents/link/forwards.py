"""TCP connections to ports on which a running part listens, each on the socket of a session of its own.

Only the part's own ports are reached (:mod:`agents.supervisor.listeners`): neither the agent, nor other parts, nor
what else the host or its network offers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import msgspec
from websockets.asyncio.client import ClientConnection

from agents.decode import BoundedDecoder
from agents.ends import clause, say
from agents.link.session_window import Broken, SessionWindow
from agents.protocol import PIECE_BYTES, OpenSession, SessionEnd, SessionWord
from agents.supervisor.listeners import Listener, listeners_of

CONNECT_S: Final = 5.0
MOST_TOLD: Final = 20
_STDIN, _STDOUT = b"\0", b"\1"
_encode = msgspec.json.Encoder().encode
_word = BoundedDecoder[SessionWord](SessionWord).read


async def forward(line: ClientConnection, asked: OpenSession, family: Callable[[], list[int]]) -> SessionEnd:
    """Connect the socket of a session to a port of the part with these processes, until one side closes.

    Without ``stdin`` no connection is made: whoever asked holds the session, in which others connect. An empty piece
    tells that the port is there. Raises Broken if the control plane ended it.
    """
    found = await asyncio.to_thread(_found, asked.port, family)
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
        again = await asyncio.to_thread(_found, asked.port, family)
        if again != found:
            return (
                again if isinstance(again, SessionEnd) else SessionEnd(cut="refused", error=_not_there(asked.port, {}))
            )
        await line.send(_STDOUT)
        return await _joined(line, reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _found(port: int, family: Callable[[], list[int]]) -> Listener | SessionEnd:
    """Return where the part listens on this port, or why it cannot be reached."""
    ports = listeners_of(family())
    return ports.get(port) or SessionEnd(cut="refused", error=_not_there(port, ports))


def _not_there(port: int, ports: dict[int, Listener]) -> str:
    if not ports:
        return say([clause("ListensNowhere", port=port)])
    told = ", ".join(str(each) for each in sorted(ports)[:MOST_TOLD])
    return say([clause("NotListening", port=port, ports=told)])


async def _joined(line: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SessionEnd:
    window = SessionWindow()
    up = asyncio.create_task(_up(reader, line, window))
    down = asyncio.create_task(_down(line, writer, window))
    try:
        done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        if up in done:
            return up.result()
        down.result()
        raise Broken("the control plane ended it")
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _up(reader: asyncio.StreamReader, line: ClientConnection, window: SessionWindow) -> SessionEnd:
    """Pass on what the part sends, until it has sent all."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(PIECE_BYTES):
            await window.take(len(piece))
            await line.send(_STDOUT + piece)
    return SessionEnd(code=0)


async def _down(line: ClientConnection, writer: asyncio.StreamWriter, window: SessionWindow) -> None:
    """Pass on what the caller sends; an empty piece is the end of it."""
    async for message in line:
        if not isinstance(message, bytes):
            window.give(_word(message).taken)
            continue
        if message[:1] != _STDIN or len(message) > PIECE_BYTES + 1:
            raise Broken("a message that is no input")
        with contextlib.suppress(ConnectionError):  # the other direction tells of its end
            if len(message) == 1:
                writer.write_eof()
            else:
                writer.write(message[1:])
                await writer.drain()
        await line.send(_encode(SessionWord(taken=len(message) - 1)), text=True)
