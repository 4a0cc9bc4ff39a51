"""Heads of requests and answers between a browser and a part: each sees the other as if it stood in the proxy's place.

To the part the origin is ``http://127.0.0.1:<port>``, where its own checks of host and origin expect it. Headers that
concern one connection are not passed on (RFC 9110, section 7.6.1), nor are those by which an answer could change what
the browser keeps of other hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controlplane.web_proxy import cookies

Headers = Sequence[tuple[bytes, bytes]]

MOST: Final = 256
_ONE_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
)  # fmt: skip
# What a proxy in front of this one tells of the browser, which is nobody's business in the part.
_NOT_UP: Final = frozenset(
    {b"host", b"cookie", b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
     b"x-forwarded-port", b"x-forwarded-server", b"x-real-ip", b"x-request-id"}
)  # fmt: skip
_NOT_DOWN: Final = frozenset(
    {b"alt-svc", b"clear-site-data", b"date", b"nel", b"origin-agent-cluster", b"public-key-pins", b"report-to",
     b"reporting-endpoints", b"server", b"strict-transport-security"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of a session as the browser knows it, and the port of the part."""

    origin: str
    port: int

    @property
    def host(self) -> str:
        """The host as the part knows it."""
        return f"127.0.0.1:{self.port}"


def value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return the first value of a header; empty without one."""
    return next((found for key, found in headers if key.lower() == name), b"")


def target(scope: dict[str, Any]) -> bytes:
    """Return the path and query of a request, as the browser wrote them."""
    query = scope.get("query_string", b"")
    return bytes(scope.get("raw_path") or b"/") + (b"?" + query if query else b"")


def is_foreign(scope: dict[str, Any], origin: str) -> bool:
    """Whether a page of another origin sent a request that only pages of this one may send.

    What remains is that somebody follows a link here. Sources: Fetch Metadata (W3C), RFC 6454.
    """
    told = value(scope["headers"], b"origin")
    is_safe = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    if told and told != origin.encode() and not is_safe:
        return True
    if value(scope["headers"], b"sec-fetch-site") not in (b"cross-site", b"same-site"):
        return bool(told) and told != origin.encode() and value(scope["headers"], b"sec-fetch-mode") != b"navigate"
    modes = value(scope["headers"], b"sec-fetch-mode"), value(scope["headers"], b"sec-fetch-dest")
    return not (is_safe and modes == (b"navigate", b"document"))


def to_part(scope: dict[str, Any], place: Place) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request as the part gets them, without those of its body."""
    headers: Headers = scope["headers"]
    here, there = place.origin.encode(), f"http://{place.host}".encode()
    found = [(b"Host", place.host.encode())]
    for key, content in _passed(headers, _NOT_UP):
        if key.startswith(b"sec-websocket-") or key == b"content-length":
            continue
        if key == b"authorization" and b"yard_" in content:
            continue
        if key in (b"origin", b"referer") and (content == here or content.startswith(here + b"/")):
            content = there + content[len(here) :]
        found.append((key, content))
    told = b"; ".join(content for key, content in headers if key == b"cookie")
    if own := cookies.for_part(told):
        found.append((b"cookie", own))
    return found


def from_part(headers: Headers, place: Place) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer as the browser gets them."""
    found = [(b"origin-agent-cluster", b"?1")]
    for key, content in _passed(headers, _NOT_DOWN):
        if key == b"set-cookie":
            content = cookies.from_part(content)
            if not content:
                continue
        if key in (b"location", b"content-location"):
            content = _at_origin(content, place)
        found.append((key, content))
    return found


def _at_origin(address: bytes, place: Place) -> bytes:
    for host in (place.host, f"localhost:{place.port}"):
        there = f"http://{host}".encode()
        if address == there or address.startswith((there + b"/", there + b"?")):
            return place.origin.encode() + address[len(there) :]
    return address


def _passed(headers: Headers, without: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    named = {
        word.strip().lower() for key, content in headers if key.lower() == b"connection" for word in content.split(b",")
    }
    return [
        (key.lower(), content)
        for key, content in headers
        if key.lower() not in _ONE_CONNECTION and key.lower() not in without and key.lower() not in named
    ]
