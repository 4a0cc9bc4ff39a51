"""The asynchronous twin of ``switchyard.stream``.

Made by switchyard/packaging/twin.py from switchyard/stream.py; change it there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from switchyard.stream import StreamEvent, _read

if TYPE_CHECKING:
    import httpx


async def listen(answer: httpx.Response) -> AsyncIterator[StreamEvent]:
    """Yield the events of an open stream until it ends, beats too."""
    told: dict[str, str] = {}
    rest = ""
    async for text in answer.aiter_text():
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            name, colon, value = line.removesuffix("\r").partition(":")
            if name:
                told[name] = value.removeprefix(" ")
            elif not colon:
                if "data" in told:
                    yield StreamEvent(told.get("event", "message"), told.get("id", ""), _read(told["data"]))
                told = {}
