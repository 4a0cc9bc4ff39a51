"""A connection of a caller: reads requests within bounds, and passes answers on as fast as the caller takes them.

An answer is never buffered: what a caller does not take stops the reading from the replica. A request is kept until the
first byte of its answer, so that another replica can be asked; all kept ones together have a bound.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import httptools

from router.upstream import Upstream

log = logging.getLogger("switchyard.router")
HEAD_BYTES: Final = 16_384
MOST_HEADERS: Final = 64
# So long may a request take to arrive, a kept connection be idle, and a caller take nothing of an answer.
REQUEST_S: Final = 60.0
IDLE_S: Final = 75.0
STUCK_S: Final = 60.0
REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed", 408: "Timeout",
    413: "Content Too Large", 429: "Too Many Requests", 431: "Request Header Fields Too Large", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
KINDS: Final = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refused(Exception):
    """Raised to answer a request with an error, in the form that OpenAI's clients read."""

    def __init__(self, status: int, code: str, text: str, *, again_s: int = 0) -> None:
        super().__init__(text)
        self.status, self.code, self.again_s = status, code, again_s

    def body(self) -> bytes:
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return json.dumps({"error": {"message": str(self), "type": kind, "code": self.code, "param": None}}).encode()


class Kept:
    """How many bytes of requests are kept in all."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0


class Request:
    """A request of a caller; ``body`` is complete when it is answered."""

    __slots__ = ("accept", "body", "call", "content_type", "is_kept_alive", "key", "length", "method", "target")

    def __init__(self) -> None:
        # The id of a queued call, and how often it was taken.
        self.call: tuple[str, int] | None = None
        self.target = self.content_type = self.accept = self.key = b""
        self.method = b""
        self.body = bytearray()
        self.length: int | None = None
        self.is_kept_alive = True


class Carried(Protocol):
    """A request that is carried to a replica, and takes the answer: a connection, or a queued call."""

    request: Request
    source: Upstream | None
    is_full: bool

    def let_go(self) -> None: ...

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None: ...

    def piece(self, body: bytes) -> None: ...

    def finish(self) -> None: ...

    def abort(self) -> None: ...


Answer = Callable[["Front"], Awaitable[None]]


class Front(asyncio.Protocol):
    """One connection of a caller."""

    def __init__(
        self, answer: Answer, limit: Callable[[bytes], int], fronts: set[Front], kept: Kept, most: int
    ) -> None:
        self._answer, self._limit, self._fronts, self._kept, self._most = answer, limit, fronts, kept, most
        self.task: asyncio.Task[None] | None = None
        self.source: Upstream | None = None
        self.is_full = self.is_gone = self.has_begun = self.is_over = False
        self.held = 0
        self.deadline = time.monotonic() + REQUEST_S
        self._parser = httptools.HttpRequestParser(self)
        self._start()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if len(self._fronts) >= self._most:
            self.refuse(Refused(503, "too_many_connections", "too many connections are open", again_s=1))
            return
        self._fronts.add(self)

    # -- the request ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.request = Request()
        self._head, self._headers, self._is_head = 0, 0, True
        self._late: Refused | None = None

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        if self.task is not None:
            self._break("a request before the answer to the one before it")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.refuse(self._late or Refused(400, "invalid_request", "this is no HTTP/1.1 request"))
            return
        if self._is_head:
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self.refuse(Refused(431, "head_too_large", f"the head of a request has at most {HEAD_BYTES} bytes"))

    def on_url(self, url: bytes) -> None:
        self.request.target += url
        if len(self.request.target) > 2_048:
            self._stop(Refused(431, "head_too_large", "the address has at most 2048 bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > MOST_HEADERS or len(name) + len(value) > HEAD_BYTES:
            self._stop(Refused(431, "head_too_large", f"a request has at most {MOST_HEADERS} headers"))
        name = name.lower()
        if name == b"authorization":
            self.request.key = value
        elif name == b"content-type":
            self.request.content_type = value
        elif name == b"accept":
            self.request.accept = value
        elif name == b"content-length" and value.isdigit():
            self.request.length = int(value[:20])
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    _expects = False

    def on_headers_complete(self) -> None:
        self._is_head = False
        self.deadline = time.monotonic() + REQUEST_S
        self.request.method = self._parser.get_method()
        self._largest = self._limit(self.request.target)
        if (self.request.length or 0) > self._largest:
            self._stop(self._too_large())
        if self._expects:
            self._expects = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if len(self.request.body) + len(body) > self._largest:
            self._stop(self._too_large())
        if self._kept.held + len(body) > self._kept.most:
            self._stop(Refused(503, "busy", "too many requests wait here; try again in a moment", again_s=1))
        self._kept.held += len(body)
        self.held += len(body)
        self.request.body += body

    def _too_large(self) -> Refused:
        return Refused(413, "too_large", f"a request of this service has at most {self._largest} bytes")

    def _stop(self, refused: Refused) -> None:
        """Stop the parser in the middle of a request, to answer it with a refusal."""
        self._late = refused
        raise ValueError("refused")

    def on_message_complete(self) -> None:
        if self.task is not None or self.is_over:
            self._break("a request before the answer to the one before it")
            return
        self.request.is_kept_alive = self._parser.should_keep_alive()
        self.deadline = float("inf")
        self.has_begun = False
        self.task = asyncio.ensure_future(self._answered())

    async def _answered(self) -> None:
        try:
            await self._answer(self)
        except Refused as refused:
            self.answer(refused.status, refused.body(), again_s=refused.again_s)
        except Exception:
            # A fault of the router costs this connection and no other.
            log.exception("a request could not be answered")
            self.abort()
        finally:
            self.task = None
            self.let_go()
        if self.is_over or self.is_gone:
            return
        if not self.request.is_kept_alive:
            self._close()
            return
        self.deadline = time.monotonic() + IDLE_S
        self._start()

    def let_go(self) -> None:
        """Forget the body of the request: its answer has begun."""
        self._kept.held -= self.held
        self.held = 0
        self.request.body = bytearray()

    # -- the answer -------------------------------------------------------------------------------------------------

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None:
        """Begin to pass on the answer of a replica."""
        self.has_begun = True
        self._is_chunked = length is None
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Answer')}\r\n".encode()]
        lines += [b"%b: %b\r\n" % (name, value.replace(b"\r", b"").replace(b"\n", b"")) for name, value in headers]
        lines.append(b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length)
        if not self.request.is_kept_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        # Written with the first piece of the body: one packet instead of two.
        self._begun = b"".join(lines)
        self._write_soon()

    _begun = b""

    def _write_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._begun and not self.is_gone:
            self.transport.write(self._begun)
        self._begun = b""

    def piece(self, body: bytes) -> None:
        """Pass on a piece of an answer."""
        if self.is_gone:
            return
        whole = b"%b%x\r\n%b\r\n" % (self._begun, len(body), body) if self._is_chunked else self._begun + body
        self._begun = b""
        self.transport.write(whole)

    def finish(self) -> None:
        """End an answer."""
        if self.is_gone:
            return
        self._flush()
        if self._is_chunked:
            self.transport.write(b"0\r\n\r\n")

    def answer(self, status: int, body: bytes, *, again_s: int = 0, kind: str = "application/json") -> None:
        """Write a whole answer of the router's own."""
        if self.is_gone or self.is_over:
            return
        again = f"retry-after: {again_s}\r\n" if again_s else ""
        if status == 401:
            again += "www-authenticate: Bearer\r\n"
        close = "" if self.request.is_kept_alive else "connection: close\r\n"
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: {kind}\r\n{again}{close}"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def refuse(self, refused: Refused) -> None:
        """Answer with a refusal, and close: what of the request has not arrived yet is not read."""
        if self.is_over:
            return
        self.request.is_kept_alive = False
        self.answer(refused.status, refused.body(), again_s=refused.again_s)
        self._close()

    def _close(self) -> None:
        """Close so that the caller can read the answer: what still comes is thrown away for a moment."""
        self.is_over = True
        self.let_go()
        self.deadline = time.monotonic() + 2.0
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def abort(self) -> None:
        """Cut the connection: the caller learns that the answer is not whole."""
        self.is_over = True
        self.transport.abort()

    def _break(self, why: str) -> None:
        if self.task is not None:
            self.task.cancel(why)
        self.abort()

    # -- the connection ---------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.is_full = True
        self.deadline = time.monotonic() + STUCK_S
        if self.source is not None and not self.source.is_lost:
            self.source.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        self.deadline = float("inf") if self.task is not None else time.monotonic() + IDLE_S
        if self.source is not None and not self.source.is_lost:
            self.source.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True
        self._fronts.discard(self)
        self.let_go()
        if self.task is not None:
            self.task.cancel("the caller went away")

    def eof_received(self) -> bool:
        # A caller may close its side while it waits for an answer; with nothing asked, nothing is left to do.
        return self.task is not None
