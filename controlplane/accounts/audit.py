"""The audit log: a row for each change that a person makes, written by :func:`record` in the change's transaction.

The actor and the way are known from the request or the command in which the change is made. What the control plane does
by itself has no entry, but events and decisions.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.db import models, transaction
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

from controlplane.accounts.models import AuditEntry, Token, User

Via = AuditEntry.Via

# The limits of a value, and of one side of a change.
LONGEST_TEXT: Final = 500
MOST_VALUES: Final = 50
LARGEST_SIDE: Final = 8_000
MASK: Final = "***"
_SECRET = re.compile(r"password|secret|token|digest|credential|private|passphrase|(?:^|_)key(?:$|_)", re.IGNORECASE)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who makes a change, and how."""

    actor: str
    via: Via
    actor_id: int | None = None
    credential: str = ""
    request_id: str = ""


# A request rather than its origin, because the user is known only after the middleware.
_current: ContextVar[HttpRequest | Origin | None] = ContextVar("audit_origin", default=None)


def record(
    action: str,
    row: models.Model | tuple[str, object, str],
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
) -> AuditEntry | None:
    """Records that ``action`` was applied to a row, or to an object given by kind, id and name; nothing without an
    actor.

    Must be called in the transaction of the change. Values of secrets are masked, and long ones are cut.
    """
    origin = current()
    if origin is None:
        return None
    if isinstance(row, models.Model):
        row = (row._meta.model_name or "", row.pk, str(row))
    kind, object_id, name = row
    return AuditEntry.objects.create(
        actor=origin.actor[:150],
        actor_id=origin.actor_id,
        via=origin.via,
        credential=origin.credential[:120],
        action=action[:60],
        kind=kind[:40],
        object_id=str("" if object_id is None else object_id)[:64],
        name=_plain(name)[:200],
        before=side(before or {}),
        after=side(after or {}),
        reason=_plain(reason)[:500],
        request_id=origin.request_id[:64],
    )


@contextlib.contextmanager
def command(name: str) -> Iterator[None]:
    """A context in which changes are attributed to a command on the server, in the name of the host's user."""
    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # a container may have no entry for its user
        who = "?"
    token = _current.set(Origin(f"{who}@server", Via.SYSTEM, credential=f"manage.py {name}"))
    try:
        with transaction.atomic():
            yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def acting(origin: Origin) -> Iterator[None]:
    """A context in which changes have this origin, for ways other than a request, such as a socket."""
    token = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Origin | None:
    """The origin of changes here; ``None`` without one."""
    found = _current.get()
    return of_request(found) if isinstance(found, HttpRequest) else found


def of_request(request: HttpRequest) -> Origin | None:
    """The origin of a request; ``None`` if nobody is signed in."""
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return None
    token = getattr(request, "auth", None)
    request_id = getattr(request, "request_id", "")
    if isinstance(token, Token):
        # The user agent of the client, which distinguishes a person's scripts from their commands.
        agent = request.META.get("HTTP_USER_AGENT", "")
        via = Via.CLI if agent.startswith("yard/") else Via.API
        return Origin(user.get_username(), via, user.pk, of_token(token), request_id)
    via = Via.ADMIN if request.path.startswith("/admin/") else Via.PAGE
    session = getattr(getattr(request, "session", None), "session_key", None)
    return Origin(user.get_username(), via, user.pk, of_login(session) if session else "", request_id)


def of_login(session: str) -> str:
    """The name of a browser's session in the log, which is not its key."""
    return f"session {hashlib.sha256(session.encode()).hexdigest()[:12]}"


def of_token(token: Token) -> str:
    """The name of a token in the log."""
    return f"token {str(token.pk)[:8]} {token.name}"


@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Gives each request an id, its own or that of a proxy, and makes it known to :func:`record`."""

    def begin(request: HttpRequest) -> None:
        given = request.headers.get("X-Request-ID", "")
        request.request_id = given if _REQUEST_ID.match(given) else uuid.uuid4().hex  # type: ignore[attr-defined]

    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> Any:
            begin(request)
            token = _current.set(request)
            try:
                answer: Awaitable[Any] = get_response(request)
                response = await answer
            finally:
                _current.reset(token)
            response["X-Request-ID"] = request.request_id  # type: ignore[attr-defined]
            return response

        return asynchronous

    def synchronous(request: HttpRequest) -> Any:
        begin(request)
        token = _current.set(request)
        try:
            response = get_response(request)
        finally:
            _current.reset(token)
        response["X-Request-ID"] = request.request_id  # type: ignore[attr-defined]
        return response

    return synchronous


def side(values: Mapping[str, Any]) -> dict[str, Any]:
    """One side of a change in the form that is stored: bounded, and without secrets."""
    found = {str(name)[:63]: _bounded(str(name), value) for name, value in list(values.items())[:MOST_VALUES]}
    size = len(json.dumps(found))
    return found if size <= LARGEST_SIDE else {"cut": size, "fields": sorted(found)}


def fields(row: models.Model, *names: str) -> dict[str, Any]:
    """These fields of a row, for one side of a change."""
    return {name: getattr(row, name) for name in names}


def _bounded(name: str, value: Any) -> Any:
    if _SECRET.search(name) and value not in (None, "", False):
        return MASK
    match value:
        case None | bool() | int() | float():
            return value
        case models.Model():
            return str(value)[:LONGEST_TEXT]
        case dict():
            return {str(key)[:63]: _bounded(str(key), one) for key, one in list(value.items())[:MOST_VALUES]}
        case list() | tuple() | set() | frozenset() | models.QuerySet():
            return [_bounded("", one) for one in list(value)[:MOST_VALUES]]
    text = _plain(str(value))
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _plain(text: str) -> str:
    """The text without NUL, which PostgreSQL cannot store."""
    return text.replace("\x00", "")
