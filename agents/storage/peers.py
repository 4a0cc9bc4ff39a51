"""Serves stored content by digest, over TLS, to other nodes that the control plane sends with a ticket.

A ticket is an HMAC of the root's digest under a key that this node made, sent to the control plane, and replaces after
a while. It admits to that root only, and needs no comparison of clocks. Requests have digests only, no names.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import socket
import ssl
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from agents.decode import digits
from agents.protocol import MEASURED, MEASURED_BYTES, MEASURED_S
from agents.storage.content_store import ContentStore
from agents.storage.manifest import DIGEST, PIECE

log = logging.getLogger("switchyard.agent")
_Request = socket.socket | tuple[bytes, socket.socket]
_Address = Any

KEY_LIFE_S: Final = 600.0
TRANSFERS: Final = 16
VISITORS: Final = 64


def ticket(key: str, root: str) -> str:
    """Return the ticket for a root at the node that made the key."""
    return hmac.new(key.encode(), root.encode(), hashlib.sha256).hexdigest()


class Keys:
    """The current key and the former one, so that a ticket is valid for one to two lifetimes of a key."""

    def __init__(self) -> None:
        self.current = secrets.token_hex(32)
        self._former = self.current
        self._made_at = time.monotonic()

    def rotate(self) -> bool:
        """Make a new key if the current one is old enough; return whether it did."""
        if time.monotonic() - self._made_at < KEY_LIFE_S:
            return False
        self._former, self.current, self._made_at = self.current, secrets.token_hex(32), time.monotonic()
        return True

    def accepts(self, given: str, root: str) -> bool:
        encoded = given.encode("utf-8", "surrogatepass")
        return any(hmac.compare_digest(encoded, ticket(key, root).encode()) for key in (self.current, self._former))


class Pace:
    """The rate limit of each other host in bytes per second, with a burst of one second. 0 is no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def wait_s(self, host: str, count: int, now: float) -> float:
        """Take ``count`` bytes of a host's share; return the seconds to wait before sending them."""
        if not self.bytes_per_s:
            return 0.0
        with self._lock:
            start = max(self._free_at[host], now - 1.0)
            self._free_at[host] = start + count / self.bytes_per_s
            return max(0.0, start - now)


class PeerServer(ThreadingHTTPServer):
    """The server for other nodes: TLS if it has a context, else plain. ``served`` counts bytes by root."""

    daemon_threads = True
    request_queue_size = VISITORS

    def __init__(
        self,
        address: tuple[str, int],
        store: ContentStore,
        keys: Keys,
        bytes_per_s: int,
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, _PeerRequest)
        self.context = context
        self._seats = threading.BoundedSemaphore(VISITORS)
        self.store, self.keys, self.pace = store, keys, Pace(bytes_per_s)
        self.room = threading.BoundedSemaphore(TRANSFERS)
        self.served: dict[str, int] = defaultdict(int)
        self._thread = threading.Thread(target=self.serve_forever, name="peers", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: _Request, client_address: _Address) -> None:
        """Start a thread for each connection, up to a limit; further connections are closed."""
        if not self._seats.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._seats.release()
            raise

    def process_request_thread(self, request: _Request, client_address: _Address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._seats.release()

    def finish_request(self, request: _Request, client_address: _Address) -> None:
        """Serve one connection. The TLS handshake is done here, where only this client waits for it."""
        if self.context is None or not isinstance(request, socket.socket):
            super().finish_request(request, client_address)
            return
        request.settimeout(_PeerRequest.timeout)
        with self.context.wrap_socket(request, server_side=True) as safe:
            super().finish_request(safe, client_address)

    def handle_error(self, request: _Request, client_address: _Address) -> None:
        """Log clients that disconnect early or speak no TLS at debug level only."""
        log.debug("a visitor of the peer server was not answered: %s", sys.exc_info()[1])

    @property
    def port(self) -> int:
        return int(self.server_address[1])


def serve_connection(connection: socket.socket, server: PeerServer, host: str = "127.0.0.1") -> None:
    """Serve one connection of another node."""
    _PeerRequest(connection, (host, 0), server)


class _PeerRequest(BaseHTTPRequestHandler):
    server: PeerServer
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        words = {name: values[0] for name, values in parse_qs(asked.query).items()}
        sha256, root = asked.path.rpartition("/")[2], words.get("root", "")
        store = self.server.store
        if sha256 == MEASURED:
            self._measure(words.get("ticket", ""))
            return
        if (
            not DIGEST.fullmatch(sha256)
            or not DIGEST.fullmatch(root)
            or not self.server.keys.accepts(words.get("ticket", ""), root)
        ):
            self._refuse(404)
        elif not self.server.room.acquire(blocking=False):
            self._refuse(503)
        else:
            try:
                with store.hold(root):
                    if sha256 in store.members(root) and store.has(sha256):
                        self._send(sha256, root)
                    else:
                        self._refuse(404)
            finally:
                self.server.room.release()

    def _send(self, sha256: str, root: str) -> None:
        host = self.client_address[0]
        with self.server.store.path(sha256).open("rb") as file:
            size = file.seek(0, 2)
            start = self._start(size)
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(size - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            self.end_headers()
            file.seek(start)
            while piece := file.read(PIECE // 4):
                time.sleep(self.server.pace.wait_s(host, len(piece), time.monotonic()))
                self.wfile.write(piece)
                self.server.served[root] += len(piece)
        self.server.store.touch(root)

    def _measure(self, given: str) -> None:
        """Send bytes that mean nothing, so that the other node measures the link; bounded in size and time."""
        if not self.server.keys.accepts(given, MEASURED):
            self._refuse(404)
        elif not self.server.room.acquire(blocking=False):
            self._refuse(503)
        else:
            try:
                self.send_response(200)
                self.send_header("Content-Length", str(MEASURED_BYTES))
                self.end_headers()
                block, until = os.urandom(PIECE // 4), time.monotonic() + 2 * MEASURED_S
                for _ in range(MEASURED_BYTES // len(block)):
                    if time.monotonic() > until:
                        self.close_connection = True
                        break
                    time.sleep(self.server.pace.wait_s(self.client_address[0], len(block), time.monotonic()))
                    self.wfile.write(block)
            finally:
                self.server.room.release()

    def _start(self, size: int) -> int:
        """Return the offset of a resumed request: ``Range: bytes=N-``."""
        unit, _, span = self.headers.get("Range", "").partition("=")
        first = span.removesuffix("-")
        return min(digits(first) or 0, size) if unit == "bytes" and span.endswith("-") else 0

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing, because paths contain tickets."""
