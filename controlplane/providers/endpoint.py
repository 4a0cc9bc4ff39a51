"""Foreign engines that are asked over HTTP: where they are, and how this control plane proves to them who it is.

Both are the administrator's: a folder in ``YARD_PROVIDER_ENDPOINTS`` for each engine, with a file for each value, as a
mounted Secret of Kubernetes has them: ``url``, and where it is needed ``token`` (sent as ``Authorization: Bearer``),
``ca.crt``, and ``tls.crt`` with ``tls.key``. Operators name a folder, and can neither read it nor send its token
elsewhere. The files are read for each request, so a token that is renewed is used at once.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec
from django.conf import settings

from controlplane.bounded_connection import BoundedConnection, ExchangeFailed
from controlplane.providers import typed
from controlplane.providers.engine import EngineFault

PATIENCE_S: Final = 5.0
MOST_S: Final = 20.0
MOST_READ: Final = 32 << 20
# What a file of an endpoint may hold, in bytes.
MOST_FILE: Final = 64 << 10
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """What an engine answered. ``secrets`` are what people must not be told of it."""

    status: int
    body: bytes
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_well(self) -> bool:
        return 200 <= self.status < 300

    @property
    def said(self) -> str:
        """The end of the answer as one short line for people."""
        return self.in_words(self.body[-8_192:].decode(errors="replace"))

    def in_words(self, text: str) -> str:
        """Return the end of a text from the answer as one short line for people."""
        for secret in filter(None, self.secrets):
            text = text.replace(secret, "***")
        return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[-200:]


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """Where one engine is."""

    name: str
    parts: SplitResult
    token: str = field(default="", repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        secret: str = "",
        accept: str = "application/json",
    ) -> EndpointAnswer:
        """Send one request and return its answer, whatever its status is; ``secret`` must not be repeated in what is
        said of it. Raises EngineFault where none came, or one that is too long; whether the request had an effect is
        unknown then."""
        host, port = str(self.parts.hostname), self.parts.port or (443 if self.context else 80)
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        sent = None if body is None else msgspec.json.encode(body)
        connection = BoundedConnection(host, port, self.context, patience_s=PATIENCE_S)
        try:
            with connection.cut_after(MOST_S):
                connection.request(method, self.parts.path.rstrip("/") + path, body=sent, headers=headers)
                response = connection.getresponse()
                read = response.read(MOST_READ + 1)
        except ExchangeFailed as failed:
            if isinstance(failed.error, ssl.SSLError):
                raise EngineFault("EndpointUntrusted", f"{self.name} ({failed.error.reason or 'TLS'})") from None
            if failed.code == "timed_out":
                raise EngineFault("EndpointSilent", self.name) from None
            raise EngineFault("EndpointUnreachable", f"{self.name} ({type(failed.error).__name__})") from None
        if len(read) > MOST_READ:
            raise EngineFault("EndpointTooLoud", self.name)
        return EndpointAnswer(response.status, read, (self.token, secret))


def of(name: str) -> EngineEndpoint:
    """Return the endpoint that the administrator calls by this name. Raises EngineFault if it is not in order."""
    folder = Path(settings.PROVIDER_ENDPOINTS or "/nonexistent") / name
    wrong = EngineFault("EndpointMissing", name)
    if not settings.PROVIDER_ENDPOINTS or not typed.NAME.fullmatch(name):
        raise wrong
    url, token = _text(folder / "url"), _text(folder / "token")
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        raise wrong from None
    is_plain = not (parts.query or parts.fragment or parts.username)
    if not (url.isascii() and parts.hostname and is_plain and has_port and _PATH.fullmatch(parts.path.rstrip("/"))):
        raise wrong
    if parts.scheme not in ("http", "https") or (token and not _TOKEN.fullmatch(token)):
        raise wrong
    try:
        context = _context(folder) if parts.scheme == "https" else None
    except (OSError, ValueError):
        raise EngineFault("EndpointMissing", f"{name} (certificates)") from None
    return EngineEndpoint(name, parts, token, context)


def _text(file: Path) -> str:
    """Return what a file holds without the spaces around it; empty if there is no such file."""
    try:
        with file.open("rb") as opened:
            read = opened.read(MOST_FILE + 1)
        return read.decode().strip() if len(read) <= MOST_FILE else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _context(folder: Path) -> ssl.SSLContext:
    authority, certificate = folder / "ca.crt", folder / "tls.crt"
    context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
    if certificate.exists():
        context.load_cert_chain(certificate, folder / "tls.key")
    return context
