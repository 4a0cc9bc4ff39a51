"""Reads server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import httpx

SILENCE_S: Final = 30.0
"""A stream that tells nothing for so long is broken: the server tells a beat every 15 seconds."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event: ``cursor`` is the id by which a later stream goes on after it."""

    name: str
    cursor: str
    data: Any


def listen(answer: httpx.Response) -> Iterator[StreamEvent]:
    """Yield the events of an open stream until it ends, beats too."""
    told: dict[str, str] = {}
    rest = ""
    for text in answer.iter_text():
        *lines, rest = (rest + text).split("\n")  # not what str.splitlines also takes for ends of lines
        for line in lines:
            name, colon, value = line.removesuffix("\r").partition(":")
            if name:
                told[name] = value.removeprefix(" ")
            elif not colon:  # an empty line
                if "data" in told:
                    yield StreamEvent(told.get("event", "message"), told.get("id", ""), _read(told["data"]))
                told = {}


def _read(text: str) -> Any:
    """Raises httpx.RemoteProtocolError for what is no JSON: the stream is broken."""
    import httpx

    try:
        return json.loads(text)
    except ValueError as error:
        raise httpx.RemoteProtocolError(f"an event that is no JSON: {error}") from None
