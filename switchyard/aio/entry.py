"""The asynchronous twin of ``switchyard.entry``.

Made by switchyard/packaging/twin.py from switchyard/entry.py; change it there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from switchyard.entry import _STATUS, PIECE_BYTES, WINDOW_BYTES
from switchyard.problem import ApiProblem, Unreachable

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from switchyard.aio.wire import AsyncWire


class AsyncEntry:
    """A command inside a stage. Iterate over its output with ``async for``; ``opened`` tells where it runs.

    Raises :class:`~switchyard.problem.ApiProblem` if the control plane refuses or ends it, and
    :class:`~switchyard.problem.Unreachable` if the connection breaks. Only one task may iterate; any may send.
    """

    def __init__(self, wire: AsyncWire, path: str, ask: Mapping[str, Any]) -> None:
        self._wire, self._path, self._ask = (wire, path, dict(ask))
        self._opened = AsyncExitStack()
        self._line: ClientConnection
        self._room = asyncio.Condition()
        self._left = WINDOW_BYTES
        self._is_over = False
        self.opened: dict[str, Any] = {}
        self.end: dict[str, Any] = {}

    async def open(self) -> Self:
        """Connect and start the command; return this entry."""
        self._line = await self._opened.enter_async_context(self._wire.socket(self._path))
        try:
            await self._line.send(json.dumps(self._ask))
            first = await self._receive()
            if isinstance(first, bytes) or "opened" not in first:
                raise Unreachable(f"{self._wire.url} answered something that is no session")
        except BaseException:
            await self.close()
            raise
        self.opened = first["opened"]
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session, which ends the command with its processes."""
        async with self._room:
            self._is_over = True
            self._room.notify_all()
        await self._opened.aclose()

    @property
    def code(self) -> int:
        """Return the exit code of the ended command: 128 + N if signal N ended it."""
        signal = self.end.get("signal")
        return 128 + int(signal) if signal else int(self.end.get("code") or 0)

    async def __aiter__(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the output of the command, each piece with its stream, until it has ended."""
        while True:
            heard = await self._receive()
            if isinstance(heard, bytes):
                yield (heard[0], heard[1:])
                await self.say(taken=len(heard) - 1)
            elif end := heard.get("end"):
                self.end = end
                if cut := end.get("cut"):
                    detail = end.get("error") or "the session was ended"
                    raise ApiProblem(_STATUS.get(cut, 409), {"code": "session_ended", "detail": detail})
                return
            elif taken := heard.get("taken"):
                async with self._room:
                    self._left = min(WINDOW_BYTES, self._left + int(taken))
                    self._room.notify_all()

    async def send(self, content: bytes) -> None:
        """Send input. Blocks while the command does not read; does nothing after its end."""
        for at in range(0, len(content), PIECE_BYTES):
            piece = content[at : at + PIECE_BYTES]
            async with self._room:
                while self._left < len(piece) and (not self._is_over):
                    await self._room.wait()
                if self._is_over:
                    return
                self._left -= len(piece)
            await self._send(b"\x00" + piece)

    async def finish(self) -> None:
        """End the command's input."""
        await self._send(b"\x00")

    async def say(self, **word: Any) -> None:
        """Send another message: ``rows`` and ``columns`` of the terminal, or a ``signal`` for the command."""
        await self._send(json.dumps(word))

    async def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._line.send(message)
        except ConnectionClosed:
            return

    async def _receive(self) -> bytes | dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        try:
            message = await self._line.recv()
        except ConnectionClosed:
            raise Unreachable("the connection to the control plane was lost, and the session with it") from None
        if isinstance(message, bytes):
            return message
        told = json.loads(message)
        if problem := told.get("refused"):
            raise ApiProblem(int(problem.get("status") or 400), problem)
        return dict(told)
