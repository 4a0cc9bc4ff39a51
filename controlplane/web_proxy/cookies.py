"""Cookies on the origins of sessions: ours, which lets a browser in, and those of the part, which are its own alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from controlplane.jobs import web_sessions

_NAME: Final = "yard_port"
# What the dashboard's cookies, Django's and ours are called: a part neither gets nor sets one.
_KEPT: Final = ("yard_", "__host-yard_", "__secure-yard_")
_DJANGOS: Final = frozenset({"sessionid", "csrftoken", "messages", "django_language"})


def name(scheme: str) -> str:
    """Return the name of the cookie; over TLS one that no other host can set (RFC 6265bis, section 4.1.3.2)."""
    return f"__Host-{_NAME}" if scheme == "https" else _NAME


def made(scheme: str, value: str) -> str:
    """Return the header that sets the cookie, for this host only."""
    secure = "; Secure" if scheme == "https" else ""
    return f"{name(scheme)}={value}; Path=/; Max-Age={web_sessions.COOKIE_S}; HttpOnly; SameSite=Lax{secure}"


def lets_in(header: bytes, scheme: str, session_id: uuid.UUID) -> bool:
    """Whether one of the cookies is this session's: a part of the same site may have set others of that name."""
    ours = name(scheme)
    found = [value for key, value in _pairs(header) if key == ours][:8]
    return any(web_sessions.is_cookie_of(session_id, value) for value in found)


def for_part(header: bytes) -> bytes:
    """Return a Cookie header as the part gets it; empty without cookies of its own."""
    kept = [f"{key}={value}" if key else value for key, value in _pairs(header) if not _is_kept(key)]
    return "; ".join(kept).encode("latin-1")


def from_part(header: bytes) -> bytes:
    """Return a Set-Cookie header as the browser gets it, for this host only; empty if the part may not set it."""
    pair, *attributes = header.decode("latin-1").split(";")
    if _is_kept(pair.partition("=")[0].strip()):
        return b""
    own = [each for each in attributes if each.partition("=")[0].strip().lower() != "domain"]
    return ";".join([pair, *own]).encode("latin-1")


def _pairs(header: bytes) -> Iterator[tuple[str, str]]:
    for each in header.decode("latin-1").split(";"):
        key, equals, value = each.strip().partition("=")
        if key or value:
            yield (key, value) if equals else ("", key)


def _is_kept(key: str) -> bool:
    lower = key.lower()
    return lower.startswith(_KEPT) or lower in _DJANGOS
