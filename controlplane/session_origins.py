"""The origins of web ports of jobs: ``s-<id>.<base>``, a host of its own for each port that somebody opened.

Browsers keep cookies, storage and service workers by host or origin. A host that nobody else has is therefore what
separates a notebook from the dashboard and from other notebooks; a port of the dashboard's host would share cookies.
Sources: RFC 6265 section 8.5 (cookies are not isolated by port), RFC 6761 section 6.3 (names below localhost).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

PREFIX: Final = "s-"
_BASE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class SessionOrigins:
    """All origins of one installation, ``scheme://s-<id>.base``. ``port`` is as in an address: ``:8470`` or empty."""

    scheme: str
    base: str
    port: str

    @classmethod
    def read(cls, url: str) -> Self:
        """Read an address like ``https://*.sessions.example.org``. Raises ValueError for any other form."""
        parts = urlsplit(url)
        star, _, base = (parts.hostname or "").partition(".")
        number = parts.port
        plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
        if parts.scheme not in ("http", "https") or star != "*" or not _BASE.fullmatch(base) or not plain:
            raise ValueError(f'"{url}" is not like https://*.sessions.example.org')
        return cls(parts.scheme, base, f":{number}" if number else "")

    @classmethod
    def beside(cls, url: str) -> Self | None:
        """Return the origins below localhost beside a dashboard on loopback; None if it is elsewhere."""
        parts = urlsplit(url)
        if parts.hostname not in _LOOPBACK or parts.scheme != "http":
            return None
        return cls("http", "localhost", f":{parts.port}" if parts.port else "")

    def of(self, session: uuid.UUID) -> str:
        """Return the origin of a session."""
        return f"{self.scheme}://{PREFIX}{session.hex}.{self.base}{self.port}"

    def session_at(self, host: str) -> uuid.UUID | None:
        """Return the session that a Host header, or the host of an origin, names; None if it is another host."""
        name, _, port = host.lower().partition(":")
        label, _, base = name.partition(".")
        if base != self.base or not label.startswith(PREFIX) or (port and not port.isdigit()):
            return None
        digits = label.removeprefix(PREFIX)
        return uuid.UUID(digits) if re.fullmatch(r"[0-9a-f]{32}", digits) else None

    def is_below(self, host: str) -> bool:
        """Whether a Host header names a host below the base, whether or not it is a session's."""
        return host.lower().partition(":")[0].rstrip(".").endswith(f".{self.base}")

    @property
    def pattern(self) -> str:
        """All origins, as a source of a content security policy."""
        return f"{self.scheme}://*.{self.base}{self.port}"

    def fault(self, public_host: str, allowed: Iterable[str]) -> str:
        """Return why these origins are not separate from the dashboard at ``public_host``; empty if they are.

        ``allowed`` are hosts and origins that the dashboard trusts, a leading dot or ``*.`` standing for all below.
        """
        if public_host.endswith(f".{self.base}") or (public_host == self.base and self.base != "localhost"):
            return f"the dashboard's own name, {public_host}, must not be {self.base} or below it"
        for each in allowed:
            host = each.partition("://")[2].partition(":")[0] or each
            below = host.removeprefix("*") if host.startswith("*.") else host
            if host == "*" or (below.startswith(".") and f".{self.base}".endswith(below)):
                return f"the dashboard trusts {each}, and with it every notebook"
        return ""
