"""Waits for an event with a time limit."""

from __future__ import annotations

import asyncio


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Return whether ``event`` was set within so many seconds.

    Not ``asyncio.wait_for``: before Python 3.12 that may lose a cancellation in the same moment as the event (CPython
    issue 86296), and a cancelled loop would go on for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
