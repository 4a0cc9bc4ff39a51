"""A connection to a replica: one request at a time, whose answer is passed on as it comes."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import httptools

CONNECT_S: Final = 2.0
MOST_HEADERS: Final = 65_536
# What of a replica's answer is passed on; the rest concerns this connection only.
PASSED: Final = frozenset({b"content-type", b"retry-after", b"x-request-id", b"openai-processing-ms", b"warning"})


class Broken(Exception):
    """Raised if a replica does not answer as it should; ``is_late`` once something of its answer was passed on.

    ``is_sent`` says that it may have begun with the request.
    """

    def __init__(self, why: str, *, is_late: bool = False, is_sent: bool = False) -> None:
        super().__init__(why)
        self.is_late, self.is_sent = is_late, is_sent


class Sink(Protocol):
    """Who takes an answer."""

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None: ...

    def piece(self, body: bytes) -> None: ...

    def finish(self) -> None: ...

    @property
    def is_full(self) -> bool: ...


class Upstream(asyncio.Protocol):
    """One connection to a replica."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.answered: asyncio.Future[None] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def ask(self, request: bytes, sink: Sink, first_byte_s: float, idle_s: float) -> bool:
        """Send a request and pass its answer to ``sink``. Returns whether the connection can be used again.

        Raises :class:`Broken`. A status that means "not now" is not passed on: it raises too, and another replica may
        be asked.
        """
        self.sink, self.has_begun = sink, False
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        self.pieces: list[bytes] = []
        self.head_bytes, self.moved = 0, True
        self.status = 0
        loop = asyncio.get_running_loop()
        self.answered = loop.create_future()
        timer = loop.call_later(first_byte_s, self._too_late, f"no byte of an answer within {first_byte_s:g} s", idle_s)
        try:
            self.transport.write(request)
            self._timer = timer
            await self.answered
            return self.parser.should_keep_alive() and not self.is_lost
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        finally:
            self._timer.cancel()
            self.sink = self.answered = None

    def _too_late(self, why: str, idle_s: float) -> None:
        # A caller who does not read holds the replica up, not the other way round.
        if (self.moved and self.has_begun) or (self.sink is not None and self.sink.is_full):
            self.moved = False
            text = f"no byte for {idle_s:g} s in the middle of an answer"
            self._timer = asyncio.get_running_loop().call_later(idle_s, self._too_late, text, idle_s)
            return
        self.transport.abort()
        self._fail(why)

    def data_received(self, data: bytes) -> None:
        if self.sink is None:
            # Nothing was asked: whatever this is, it answers no request.
            self.is_lost = True
            self.transport.abort()
            return
        self.moved = True
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.transport.abort()
            self._fail(f"its answer is no HTTP: {error}")
            return
        if not self.status:
            # What came may be a head and much of a body at once, so the head counts only while it has not ended.
            self.head_bytes += len(data)
            if self.head_bytes > MOST_HEADERS:
                self.transport.abort()
                self._fail("the head of its answer is too long")
                return
        if self.pieces and self.sink is not None:
            body = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
            self.pieces.clear()
            self._begin()
            self.sink.piece(body)
        if self.is_whole and self.sink is not None and self.answered is not None and not self.answered.done():
            self._begin()
            self.sink.finish()
            self.answered.set_result(None)

    is_whole = False

    def on_message_begin(self) -> None:
        self.is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in PASSED:
            self.headers.append((name, value))
        elif name == b"content-length" and value.isdigit():
            self.length = int(value)

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:
            raise httptools.HttpParserError("an interim answer")
        self.status = status
        if status in (502, 503, 504):
            self._fail(f"it answered {status}", is_sent=False)
            self.transport.abort()
            self.sink = None
            return

    def _begin(self) -> None:
        """Pass on the head with the first byte of the body: until then another replica can be asked."""
        if not self.has_begun and self.sink is not None:
            self.has_begun = True
            self.sink.begin(self.status, self.headers, self.length)

    def on_body(self, body: bytes) -> None:
        if self.sink is not None:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True

    def eof_received(self) -> None:
        # An answer without a length ends here, which nobody can tell from one that was cut off: it counts as broken.
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._fail(f"the connection ended: {error}" if error else "it closed the connection")

    def _fail(self, why: str, *, is_sent: bool = True) -> None:
        self.is_lost = True
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(Broken(why, is_late=self.has_begun, is_sent=is_sent))

    def close(self) -> None:
        if not self.is_lost:
            self.transport.close()


async def connect(host: str, port: int) -> Upstream:
    """Connect to a replica. Raises :class:`Broken`."""
    try:
        async with asyncio.timeout(CONNECT_S):
            made: tuple[Any, Upstream] = await asyncio.get_running_loop().create_connection(Upstream, host, port)
    except (OSError, TimeoutError) as error:
        raise Broken(f"no connection: {getattr(error, 'strerror', None) or error or 'it does not answer'}") from None
    return made[1]
