"""Limits the heads of requests in size and time, because uvicorn's own protocol waits for ever and buffers everything.

Bodies are limited later, when the route is known (:mod:`controlplane.body_limit`).
"""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES: Final = 64 * 1024
# Not a setting of Django's, because the server reads requests before it is loaded.
HEAD_S: Final = float(os.environ.get("YARD_HEAD_S", "20"))


class BoundedHead(HttpToolsProtocol):
    """One connection. The time of a head counts from its first byte, that of the first request from the connection
    on."""

    _timer: asyncio.TimerHandle | None = None
    _is_head = True
    _came = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_head:
            self._came += len(data)
            self._wait()
        super().data_received(data)
        if self._is_head and self._came > HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._is_head, self._came = False, 0
        self._stop()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_head = True
        super().on_message_complete()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self._refuse, HTTPStatus.REQUEST_TIMEOUT)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: HTTPStatus) -> None:
        self._stop()
        cycle: Any = self.cycle
        if self.transport.is_closing():
            return
        if cycle is None or cycle.response_complete:
            text = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(text.encode())
        self.transport.close()
