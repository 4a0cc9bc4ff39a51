"""The mail server of the environment, read once, by the settings. Does not import Django's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.utils import parseaddr
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import validate_email

from controlplane.accounts.providers import secret_in

_LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True)
class MailServer:
    """The server for outgoing mail. ``tls`` is from the first byte on; ``start_tls`` by a command, without which
    nothing is sent."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: bool
    start_tls: bool
    sender: str


def read_mail_server(environment: Mapping[str, str]) -> MailServer | None:
    """Read the server from ``YARD_EMAIL_URL``, if set. Raises ImproperlyConfigured with the invalid variable."""
    url = environment.get("YARD_EMAIL_URL", "")
    sender = environment.get("YARD_EMAIL_FROM", "")
    if not url:
        if sender:
            raise ImproperlyConfigured("YARD_EMAIL_FROM is set, but YARD_EMAIL_URL is not: which server takes the mail")
        return None
    parts, port = _parts(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if path := environment.get("YARD_EMAIL_PASSWORD_FILE", ""):
        if password:
            raise ImproperlyConfigured("YARD_EMAIL_URL has a password, and YARD_EMAIL_PASSWORD_FILE names one; say one")
        password = secret_in("YARD_EMAIL_PASSWORD_FILE", path)
    if bool(user) != bool(password):
        raise ImproperlyConfigured(
            "YARD_EMAIL_URL needs a user and a password, or neither; the password may lie in YARD_EMAIL_PASSWORD_FILE"
        )
    is_near, tls = parts.hostname in _LOOPBACK, parts.scheme == "smtps"
    usual = 465 if tls else 25 if is_near else 587
    return MailServer(
        host=parts.hostname or "",
        port=port or usual,
        user=user,
        password=password,
        tls=tls,
        start_tls=not tls and not is_near,
        sender=_sender(sender),
    )


def _parts(url: str) -> tuple[SplitResult, int | None]:
    """Split the address. The error for an invalid one does not show it, because it may contain a password."""
    wanted = "it must be like smtps://user:password@mail.example.org:465, or smtp:// for STARTTLS"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # such as an invalid port
        raise ImproperlyConfigured(f"YARD_EMAIL_URL cannot be read; {wanted}") from None
    if parts.scheme not in {"smtp", "smtps"} or not parts.hostname:
        raise ImproperlyConfigured(f"YARD_EMAIL_URL names no mail server; {wanted}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ImproperlyConfigured(
            f"YARD_EMAIL_URL goes on after the server; {wanted} (in a user or password, / ? # @ are %2F %3F %23 %40)"
        )
    return parts, port


def _sender(text: str) -> str:
    """Validate the sender for the mail header, such as ``Switchyard <yard@example.org>``."""
    wanted = "it must be like yard@example.org or Switchyard <yard@example.org>"
    if not text:
        raise ImproperlyConfigured("YARD_EMAIL_URL is set, but YARD_EMAIL_FROM is not: from which address mail comes")
    name, address = parseaddr(text)
    try:
        validate_email(address)
        if not text.isprintable():
            raise ValueError
        return str(Address(display_name=name, addr_spec=address))
    except (ValidationError, ValueError, HeaderParseError):
        raise ImproperlyConfigured(f'YARD_EMAIL_FROM is "{text}"; {wanted}') from None
