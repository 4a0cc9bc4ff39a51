"""Addresses that people name and the server asks: none leads to a host that only the server should reach.

A name is resolved once, what it resolves to is judged, and the caller connects to that very address: a name that means
another host a moment later leads nowhere. Hosts are written in one way only, since whoever connects reads the address
again and may take ``%2e`` for a dot. ``networks`` are private ones that an administrator allowed for the purpose.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST: Final = 500
# A name; one whose last part is a number is an IPv4 address, which has four decimal ones.
_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9._-]*")
_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
# Addresses that stand for an IPv4 address, which might be a private one; and what was private in IPv6 before fc00::/7.
_SPECIAL: Final = tuple(
    map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10"))
)


class AddressRefused(Exception):
    """An address may not be asked. ``code`` is stable: invalid_url, https_only, private_address or unknown_host."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def parsed(url: str, networks: Collection[Network]) -> SplitResult:
    """Return the parts of an address. Raises AddressRefused if it may not be asked, whatever it resolves to.

    Plain HTTP is for hosts of ``networks`` alone.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except (ValueError, UnicodeError):
        raise AddressRefused("invalid_url") from None
    printable = all(32 < ord(letter) < 127 for letter in url)
    schemes = {"https", "http"} if networks else {"https"}
    if len(url) > LONGEST or not printable or not host or port == 0 or parts.username is not None:
        raise AddressRefused("invalid_url")
    if parts.scheme not in schemes:
        raise AddressRefused("https_only")
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        if not _NAME.fullmatch(host) or _NUMBER.fullmatch(host):
            raise AddressRefused("invalid_url") from None
        return parts
    if not _is_allowed(literal, parts.scheme, networks):
        raise AddressRefused("private_address")
    return parts


def resolved(parts: SplitResult, networks: Collection[Network]) -> tuple[str, int, str]:
    """Return the host, the port, and the first address of the host that may be asked. Blocks. Raises AddressRefused."""
    host, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressRefused("unknown_host") from None
    for *_, place in found:
        if _is_allowed(ipaddress.ip_address(str(place[0]).partition("%")[0]), parts.scheme, networks):
            return host, port, str(place[0])
    raise AddressRefused("private_address")


def _is_allowed(address: Address, scheme: str, networks: Collection[Network]) -> bool:
    address = getattr(address, "ipv4_mapped", None) or address
    if any(address in network for network in networks):
        return True
    if any(address in network for network in _SPECIAL) or address.is_multicast or address.is_reserved:
        return False
    return scheme == "https" and address.is_global
