"""The asynchronous twin of ``switchyard.stream``.

Made by switchyard/packaging/twin.py from switchyard/stream.py; change it there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from switchyard.stream import StreamEvent

if TYPE_CHECKING:
    import httpx


async def listen(answer: httpx.Response) -> AsyncIterator[StreamEvent]:
    """Yield the events of an open stream until it ends, beats too."""
    told: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _colon, value = line.partition(":")
        if name:
            told[name] = value.removeprefix(" ")
        elif line == "" and "data" in told:
            yield StreamEvent(told.get("event", "message"), told.get("id", ""), json.loads(told["data"]))
        if line == "":
            told = {}
