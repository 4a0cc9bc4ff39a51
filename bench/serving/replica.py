"""``python -m bench.serving.replica PORT [PIECES] [PAUSE_MS]``: a replica that streams at once, for measures.

It answers each POST with so many server-sent events, with a pause between them, and GETs as a health check expects.
"""

from __future__ import annotations

import asyncio
import json
import sys

import httptools

MODELS = json.dumps({"object": "list", "data": [{"id": "none", "object": "model", "owned_by": "bench"}]}).encode()
EVENT = b'data: {"choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    """Return one chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class Replica(asyncio.Protocol):
    """One connection."""

    pieces, pause_s = 8, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self.parser.get_method() == b"POST":
            self.transport.write(HEAD)
            self._next(self.pieces)
        else:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(MODELS), MODELS)
            )

    def _next(self, left: int) -> None:
        if not left:
            self.transport.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        self.transport.write(chunk(EVENT))
        if self.pause_s:
            asyncio.get_running_loop().call_later(self.pause_s, self._next, left - 1)
        else:
            self._next(left - 1)


async def main() -> None:
    """Serve until it is killed."""
    port, pieces, pause_ms = (int(word) for word in (*sys.argv[1:], "8", "0")[:3])
    Replica.pieces, Replica.pause_s = pieces, pause_ms / 1000
    server = await asyncio.get_running_loop().create_server(Replica, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
