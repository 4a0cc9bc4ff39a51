"""Flow control of a session's socket: how much may be sent, and that the other side broke the rules."""

from __future__ import annotations

import asyncio

from agents.protocol import WINDOW_BYTES


class Broken(Exception):
    """Raised if the other side violates the protocol of sessions."""


class SessionWindow:
    """How many bytes may be sent before the other side acknowledges some."""

    def __init__(self) -> None:
        self.left = WINDOW_BYTES
        self._more = asyncio.Event()

    def give(self, taken: int) -> None:
        self.left = min(WINDOW_BYTES, self.left + taken)
        self._more.set()

    async def take(self, size: int) -> None:
        while self.left < size:
            self._more.clear()
            await self._more.wait()
        self.left -= size
