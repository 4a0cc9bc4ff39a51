"""Requests to addresses that people name: they reach no host that only the server should reach, and never take long.

The name is resolved once, what it resolves to is judged, and that very address is connected to: a name that means
another host a moment later leads nowhere. Redirections are not followed, and no proxy of the environment is used.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from django.conf import settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PATIENCE_S: Final = 5.0
# A server that sends a byte at a time is cut off all the same.
MOST_S: Final = 10.0
LONGEST_URL: Final = 500
MOST_READ: Final = 4_096
# Addresses that stand for an IPv4 address, which might be a private one; and what was private in IPv6 before fc00::/7.
_SPECIAL: Final = tuple(
    map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10"))
)


@dataclass(frozen=True, slots=True)
class ReceivedAnswer:
    """The beginning of an answer. ``is_public`` says that the address is one that everybody reaches."""

    status: int
    body: bytes
    is_public: bool


class NotDelivered(Exception):
    """A request was not answered with success. ``code`` is stable; ``answer`` is what came all the same."""

    def __init__(self, code: str, answer: ReceivedAnswer | None = None) -> None:
        super().__init__(code)
        self.code, self.answer = code, answer


def parsed_url(url: str) -> SplitResult:
    """Return the parts of an address. Raises NotDelivered if it may not be asked, whatever it resolves to."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except (ValueError, UnicodeError):
        raise NotDelivered("invalid_url") from None
    printable = all(32 < ord(letter) < 127 for letter in url)
    schemes = {"https", "http"} if settings.WEBHOOK_NETWORKS else {"https"}
    if len(url) > LONGEST_URL or not printable or not host or port == 0 or parts.username is not None:
        raise NotDelivered("invalid_url")
    if parts.scheme not in schemes:
        raise NotDelivered("https_only")
    with contextlib.suppress(ValueError):
        if not _is_allowed(ipaddress.ip_address(host), parts.scheme):
            raise NotDelivered("private_address")
    return parts


def _is_allowed(address: Address, scheme: str) -> bool:
    address = getattr(address, "ipv4_mapped", None) or address
    if any(address in network for network in settings.WEBHOOK_NETWORKS):
        return True
    if any(address in network for network in _SPECIAL) or address.is_multicast or address.is_reserved:
        return False
    return scheme == "https" and address.is_global


def _is_own(address: str) -> bool:
    """Whether an address that was connected to lies in one of the private networks that may be reached."""
    place = ipaddress.ip_address(address.partition("%")[0])
    return any((getattr(place, "ipv4_mapped", None) or place) in network for network in settings.WEBHOOK_NETWORKS)


def _resolved(host: str, port: int, scheme: str) -> str:
    """Return the first address of a host that may be asked."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NotDelivered("unknown_host") from None
    for *_, place in found:
        if _is_allowed(ipaddress.ip_address(str(place[0]).partition("%")[0]), scheme):
            return str(place[0])
    raise NotDelivered("private_address")


class _Connection(http.client.HTTPConnection):
    """A connection to one address, whatever the name in the request resolves to."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=PATIENCE_S)
        self._address, self._context = address, context
        self.is_cut = False

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), timeout=self.timeout)
        if self._context is not None:
            # The handshake is a step of its own, so that it too can be cut off.
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock.do_handshake()

    def cut(self) -> None:
        """End whatever goes on, from another thread. To the reader this looks like the other side's end."""
        self.is_cut = True
        with contextlib.suppress(OSError, AttributeError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> ReceivedAnswer:
    """Send a POST; returns the answer if it was 2xx. Raises NotDelivered."""
    parts = parsed_url(url)
    is_tls = parts.scheme == "https"
    host, port = str(parts.hostname), parts.port or (443 if is_tls else 80)
    address = _resolved(host, port, parts.scheme)
    connection = _Connection(host, port, address, ssl.create_default_context() if is_tls else None)
    timer = threading.Timer(MOST_S, connection.cut)
    timer.daemon = True
    timer.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body=body, headers=dict(headers))
        response = connection.getresponse()
        answer = ReceivedAnswer(response.status, response.read(MOST_READ), not _is_own(address))
    except ssl.SSLError:
        raise NotDelivered("timed_out" if connection.is_cut else "tls_failed") from None
    except TimeoutError:
        raise NotDelivered("timed_out") from None
    except (OSError, http.client.HTTPException, ValueError):
        raise NotDelivered("timed_out" if connection.is_cut else "no_answer") from None
    finally:
        timer.cancel()
        connection.close()
    if connection.is_cut:
        raise NotDelivered("timed_out")
    if not 200 <= answer.status < 300:
        raise NotDelivered(f"status_{answer.status}", answer)
    return answer
