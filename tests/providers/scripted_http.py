"""An HTTP server of a test that answers by a function, and notes what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

MOST_BODY: Final = 1 << 20


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked], tuple[int, bytes]]


@dataclass
class ScriptedServer:
    """A server on this host; ``answer`` may be changed at any time. An answer of status 0 is none: it hangs up."""

    answer: Answer
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def methods(self) -> list[str]:
        return [f"{each.method} {each.path}" for each in self.asked]


@contextmanager
def serving(answer: Answer) -> Iterator[ScriptedServer]:
    scripted = ScriptedServer(answer)

    class Handler(BaseHTTPRequestHandler):
        """Hands each request to the script."""

        def handle_one(self) -> None:
            body = self.rfile.read(min(MOST_BODY, int(self.headers.get("Content-Length", 0))))
            asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            scripted.asked.append(asked)
            status, said = scripted.answer(asked)
            if status:
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)
            else:
                self.close_connection = True

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = handle_one  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scripted.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()
