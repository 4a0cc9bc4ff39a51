"""How much a side of a session may send before the other has acknowledged some."""

from __future__ import annotations

import asyncio

from agents.protocol import WINDOW_BYTES


class SendWindow:
    """The bytes that may be sent: at most ``WINDOW_BYTES``."""

    def __init__(self) -> None:
        self._left = WINDOW_BYTES
        self._is_open = False
        self._more = asyncio.Event()

    def give(self, taken: int) -> None:
        """Allow as many bytes more as the other side has taken."""
        self._left = min(WINDOW_BYTES, self._left + taken)
        self._more.set()

    def open(self) -> None:
        """Let nobody wait any more: the connection is over."""
        self._is_open = True
        self._more.set()

    async def take(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        while self._left < size and not self._is_open:
            self._more.clear()
            await self._more.wait()
        self._left -= size
