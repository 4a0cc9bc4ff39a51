"""A small HTTP server that answers ``GET /metrics`` and nothing else, for few clients and not for long.

It runs in the agent's event loop, so everything that a client could make it do is bounded: how many are served at once,
how long they may take to ask and to read, how often the text is made.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import Final

from agents.decode import digits
from agents.one_request import OneRequestServer

log = logging.getLogger("switchyard.agent")

MOST_CLIENTS: Final = 4
HEAD_BYTES: Final = 8_192
HEAD_S: Final = 2.0
ANSWER_S: Final = 5.0
# All who ask within this time get the same text.
KEPT_S: Final = 1.0
_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[^ ?\r\n]*)(?:\?[^ \r\n]*)? HTTP/1\.[01]\r\n")


def endpoint(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``; an IPv6 address stands in brackets. The address is said, so that nobody opens all by
    accident."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", text)
    port = digits(found[3]) if found is not None else None
    if found is None or port is None or not 0 < port < 65_536:
        raise argparse.ArgumentTypeError(f'"{text}" is no address and port; write it as 127.0.0.1:9471 or [::1]:9471')
    return found[1] or found[2], port


class MetricsServer(OneRequestServer):
    """Serves the text that ``make`` returns."""

    def __init__(self, make: Callable[[], str]) -> None:
        super().__init__(MOST_CLIENTS)
        self._make = make
        self._made: tuple[float, bytes] = (float("-inf"), b"")
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError if the address is in use or not of this host."""
        self._server = await asyncio.start_server(self._meet, host, port, limit=HEAD_BYTES, backlog=16)
        told: int = self._server.sockets[0].getsockname()[1]
        return told

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.exchange(reader, writer, self._answer, end=b"\r\n\r\n", ask_s=HEAD_S, answer_s=ANSWER_S)

    async def _answer(self, head: bytes) -> bytes:
        request = _REQUEST.match(head)
        if request is None:
            return _response("400 Bad Request", b"this is no request\n")
        method, path = request.groups()
        if path != b"/metrics":
            return _response("404 Not Found", b"there is only /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n", "Allow: GET, HEAD\r\n")
        try:
            body = self._text()
        except Exception:
            log.exception("metrics could not be told")
            return _response("500 Internal Server Error", b"see the agent's log\n")
        return _response("200 OK", body, is_head=method == b"HEAD")

    def _text(self) -> bytes:
        made_at, body = self._made
        if time.monotonic() - made_at > KEPT_S:
            body = self._make().encode()
            self._made = (time.monotonic(), body)
        return body


def _response(status: str, body: bytes, headers: str = "", *, is_head: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n{headers}\r\n"
    )
    return head.encode() + (b"" if is_head else body)
