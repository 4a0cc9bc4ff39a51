"""Serves connections that each ask once and get one answer, for few clients at a time and not for long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable


class OneRequestServer:
    """What servers of one request for each connection have in common. ``clients`` is how many are served now."""

    def __init__(self, most_clients: int) -> None:
        self._most_clients = most_clients
        self.clients = 0

    async def exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[bytes], Awaitable[bytes]],
        *,
        end: bytes,
        ask_s: float,
        answer_s: float,
    ) -> None:
        """Read a request up to ``end``, write its answer and close.

        Asking and reading the answer may take so many seconds each; the reader's limit bounds the request. One client
        too many is cut off.
        """
        if self.clients >= self._most_clients:
            writer.transport.abort()
            return
        self.clients += 1
        try:
            async with asyncio.timeout(ask_s):
                request = await reader.readuntil(end)
            writer.write(await answer(request))
            async with asyncio.timeout(answer_s):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it asked too slowly, too much, or went away
        finally:
            self.clients -= 1
            with contextlib.suppress(OSError):
                writer.transport.abort()
