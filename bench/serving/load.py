"""A client that streams completions from an OpenAI-compatible address over kept connections, and times them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httptools

ANSWER_S = 60.0


@dataclass
class Load:
    """What came of many requests; times are in seconds. ``cut`` are those whose answer broke off after its begin."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    took_s: float = 0.0


class _Connection(asyncio.Protocol):
    """One kept connection; one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.answered: asyncio.Future[None] | None = None
        self.is_lost = False

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self.asked_at, self.first_at, self.status, self.tail = time.perf_counter(), 0.0, 0, b""
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answered

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def on_body(self, body: bytes) -> None:
        self.first_at = self.first_at or time.perf_counter()
        self.tail = (self.tail + body)[-64:]

    def on_message_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(None)
        if not self.parser.should_keep_alive():
            self.is_lost = True
        self.parser = httptools.HttpResponseParser(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._fail(error or ConnectionError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(error)


def request(
    path: str, host: str, token: str = "", prompt: str = "to be", tokens: int = 8, *, is_stream: bool = True
) -> bytes:
    """Return the bytes of one request, for a stream or for a whole answer."""
    body = json.dumps({"model": "none", "prompt": prompt, "stream": is_stream, "max_tokens": tokens}).encode()
    key = f"authorization: Bearer {token}\r\n" if token else ""
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\n{key}content-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Until:
    """Counts requests until it is told that it is over."""

    def __init__(self) -> None:
        self.is_over = False

    def __iter__(self) -> Until:
        return self

    def __next__(self) -> int:
        if self.is_over:
            raise StopIteration
        return 1


class Under:
    """A load in a thread of its own while its block runs; ``load`` is whole afterwards."""

    def __init__(self, port: int, asked: bytes, *, at_once: int = 6, done: bytes = b"[DONE]") -> None:
        self._port, self._asked, self._at_once, self._done = port, asked, at_once, done
        self._until, self.load = Until(), Load()

    def __enter__(self) -> Under:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    async def _run(self) -> None:
        began = time.perf_counter()
        work = [
            _worker(self._port, self._asked, self._until, 0.01, self._done, self.load) for _ in range(self._at_once)
        ]
        await asyncio.gather(*work)
        self.load.took_s = time.perf_counter() - began

    def __exit__(self, *error: object) -> None:
        self._until.is_over = True
        self._thread.join()


async def streams(
    port: int, asked: bytes, *, count: int, at_once: int, pause_s: float = 0.0, done: bytes = b"[DONE]"
) -> Load:
    """Make ``count`` requests over ``at_once`` connections. One that does not end with ``done`` has failed."""
    found, left = Load(), iter(range(count))
    began = time.perf_counter()
    await asyncio.gather(*(_worker(port, asked, left, pause_s, done, found) for _ in range(at_once)))
    found.took_s = time.perf_counter() - began
    return found


async def _worker(port: int, asked: bytes, left: Iterator[int], pause_s: float, done: bytes, found: Load) -> None:
    link: _Connection | None = None
    for _ in left:
        try:
            if link is None or link.is_lost:
                _transport, link = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port)
            async with asyncio.timeout(ANSWER_S):
                await link.ask(asked)
            if link.status != 200 or done not in link.tail:
                found.failed.append(f"{link.status} {link.tail!r}")
            else:
                found.first.append(link.first_at - link.asked_at)
                found.whole.append(time.perf_counter() - link.asked_at)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            has_begun = link is not None and link.answered is not None and link.first_at > 0
            (found.cut if has_begun else found.failed).append(repr(error))
            link = None
        if pause_s:
            await asyncio.sleep(pause_s)
    if link is not None:
        link.transport.close()
