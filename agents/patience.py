"""Waits for an event for so long and no longer."""

from __future__ import annotations

import asyncio


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Whether ``event`` was set within so many seconds.

    Not ``asyncio.wait_for``: before Python 3.12 that forgets a cancellation that comes in the same moment as the event
    (CPython issue 86296), and a loop that was told to end goes on for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
