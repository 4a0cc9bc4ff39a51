"""The control plane as a server: its address, the node's identity to it, and HTTP calls on kept connections.

``http.client`` is used instead of a full client library, because an agent makes three kinds of small calls, and its
memory is taken from the jobs of a thousand hosts. TLS is required except on loopback, unless the operator vouches for
the network.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Final
from urllib.parse import urlsplit

from agents.link.skew import skew_s

MOST_ANSWER: Final = 64 << 20


class ServerRefused(Exception):
    """The control plane answered with an error. ``status`` is the HTTP status."""

    def __init__(self, status: int, answer: bytes) -> None:
        self.status = status
        super().__init__(f"the control plane answered {status}: {answer[:300].decode(errors='replace')}")


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Identity:
    """The node's identity to the control plane: ``text`` is ``<node-id>:<credential>``, empty before enrolment.

    All connections of the node share it, so that a new credential applies to all at once.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text


@dataclass(frozen=True)
class Server:
    """The address of the control plane, and the node's identity to it.

    ``plain_http`` says that the operator trusts the network: without it plain HTTP is for loopback only.
    """

    url: str
    identity: Identity = field(default_factory=Identity)
    plain_http: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'"{self.url}" is not an address; give one like https://switchyard.example.org')
        if self.is_readable_on_the_way and not self.plain_http:
            raise ValueError(
                f'"{self.url}" is plain HTTP to another host; an agent speaks to it only over https:// '
                "(plain HTTP is accepted for 127.0.0.1, ::1 and localhost; on a private network that nobody else can "
                "listen on, --plain-http accepts it for every host)"
            )

    @property
    def is_readable_on_the_way(self) -> bool:
        """Whether others on the network could read the traffic, the node's credential included."""
        parts = urlsplit(self.url)
        return parts.scheme == "http" and not is_loopback(parts.hostname or "")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Node {self.identity.text}"} if self.identity.text else {}

    def socket_url(self, path: str) -> str:
        parts = urlsplit(self.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{path}"


class Channel:
    """One kept HTTP connection, used by one task at a time and dialled again after any error.

    ``skew_s`` is how many seconds this host's clock is ahead of the date of the newest answer.
    """

    def __init__(self, server: Server, timeout_s: float = 15.0) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self.skew_s: float | None = None

    def _dial(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.server.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, parts.port, timeout=self.timeout_s, context=context)
        return http.client.HTTPConnection(host, parts.port, timeout=self.timeout_s)

    def _send(
        self, method: str, path: str, body: bytes | IO[bytes] | None, content_type: str, size: int | None = None
    ) -> http.client.HTTPResponse:
        headers = {**self.server.headers, "Content-Type": content_type}
        if size is not None:
            headers["Content-Length"] = str(size)
        full = urlsplit(self.server.url).path.rstrip("/") + path
        for last in (False, True):
            fresh = self._connection is None
            connection = self._connection or self._dial()
            self._connection = connection
            try:
                if body is not None and not isinstance(body, bytes):
                    body.seek(0)
                connection.request(method, full, body=body, headers=headers)
                return connection.getresponse()
            except (OSError, http.client.HTTPException):
                self.close()
                if fresh or last:
                    raise
        raise AssertionError("unreachable: the second try either answers or raises")

    def call(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None = None,
        content_type: str = "application/json",
        size: int | None = None,
    ) -> bytes:
        """Return the answer's body. A file is sent from its beginning, with its ``size`` in bytes.

        Raises ServerRefused above status 299, OSError or HTTPException if none comes.
        """
        answer = self._send(method, path, body, content_type, size)
        self.skew_s = skew_s(answer.getheader("Date"), time.time())
        try:
            content = answer.read(MOST_ANSWER + 1)
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        if answer.status > 299:
            raise ServerRefused(answer.status, content)
        if len(content) > MOST_ANSWER:
            self.close()
            raise http.client.HTTPException(f"it answered with more than {MOST_ANSWER >> 20} MiB")
        return content

    def download(self, path: str) -> Iterator[bytes]:
        """Yield the answer's body in pieces, for content too large for memory."""
        answer = self._send("GET", path, None, "application/octet-stream")
        if answer.status > 299:
            raise ServerRefused(answer.status, answer.read(4096))
        while piece := answer.read(1 << 20):
            yield piece

    async def ask(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> bytes:
        """Run :meth:`call` in a thread."""
        return await asyncio.to_thread(self.call, method, path, body, content_type)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
