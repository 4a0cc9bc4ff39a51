"""Limits request bodies before they are read to memory or disk: size, speed, number, and sender.

Django under ASGI spools the whole body before any view runs. This middleware refuses bodies that no view would accept,
by their declared length at once or as soon as the received bytes exceed the limit. It accepts a large body only from
somebody who may send one, ends a body that arrives too slowly, and bounds how many unfinished bodies an address or a
person may have at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from channels.db import database_sync_to_async
from django.conf import settings
from django.http import HttpRequest, parse_cookie
from django.utils import translation
from django.utils.translation import gettext as _

from controlplane.accounts.guard import who
from controlplane.sentences import title

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
# Returns the sender of a request if it may be sent, such as "user:7"; else empty. It may query the database.
Identify = Callable[[Scope], str]

# A larger body is an upload: it is accepted only from somebody who may send it.
USUAL: Final = 2**20
# The most unfinished bodies of unidentified senders in all; they take about as many MiB of memory.
UNPROVED: Final = 1024


@dataclass(frozen=True, slots=True)
class Route:
    """The paths below ``prefix``: bodies have ``limit`` bytes at most, and ``identify`` returns the sender."""

    prefix: str
    limit: int
    identify: Identify


class BodyLimit:
    """ASGI middleware that enforces the limits of the first matching route before ``application``."""

    def __init__(self, application: Application, routes: Sequence[Route]) -> None:
        self._application = application
        self._routes = routes
        self._unfinished: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = next(each for each in self._routes if scope.get("path", "").startswith(each.prefix))
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            await _refuse(scope, send, _coded)
            return
        if declared.isdigit() and (len(declared) > 18 or int(declared) > route.limit):
            await _refuse(scope, send, lambda: _too_large(route.limit))
            return
        whose = ""
        if declared != b"0" or b"transfer-encoding" in headers:
            whose = await self._begin(scope, route)
            if not whose:
                await _refuse(scope, send, _too_many)
                return
        body = _Body(self._unfinished, whose, route, scope, receive, send)
        try:
            await body.pass_on(self._application)
        finally:
            body.finish()

    async def _begin(self, scope: Scope, route: Route) -> str:
        """Return the name that this unfinished body is counted under; empty if it has too many.

        Bodies count for their address first. If the address has too many, they count for the sender, if the sender is
        identified; so people who share an address can still send.
        """
        address = _address(scope)
        unproved = sum(count for whose, count in self._unfinished.items() if whose.startswith("address:"))
        if unproved < UNPROVED and _count(self._unfinished, address, settings.UNFINISHED_BODIES):
            return address
        whose = await _identified(route, scope)
        return whose if whose and _count(self._unfinished, whose, settings.UNFINISHED_BODIES) else ""


class _Body:
    """A request's body while it is received."""

    def __init__(
        self, unfinished: Counter[str], whose: str, route: Route, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._unfinished, self._whose, self._route = unfinished, whose, route
        self._scope, self._receive, self._send = scope, receive, send
        self._began = asyncio.get_running_loop().time()
        self._came = 0
        self._first: Message | None = None
        self._is_finished = self._is_answered = self._is_cut = False

    async def pass_on(self, application: Application) -> None:
        """Run the application once it is clear that the body may be received."""
        first = await self._next()
        if self._is_answered:
            return
        if not self._is_finished and self._route.limit > USUAL:
            proved = await _identified(self._route, self._scope)
            if proved:
                self._count_no_more()
                whose = f"upload:{proved}"
                if not _count(self._unfinished, whose, settings.UNFINISHED_UPLOADS):
                    await self._end(_too_many)
                    return
                self._whose = whose
            else:
                # The application refuses it with its usual answer; the rest of the body is never read.
                self.finish()
                self._is_cut = True
                first = {"type": "http.request", "body": b"", "more_body": False}
        self._first = first
        await application(self._scope, self._receive_next, self._send_on)

    def finish(self) -> None:
        """Stop counting the body as unfinished: it is complete, or its rest will not be read."""
        self._is_finished = True
        self._count_no_more()

    def _count_no_more(self) -> None:
        if self._whose:
            self._unfinished[self._whose] -= 1
            if self._unfinished[self._whose] <= 0:
                del self._unfinished[self._whose]
            self._whose = ""

    async def _receive_next(self) -> Message:
        """Return the application's next message; if the body was refused, a disconnect."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await (self._receive() if self._is_finished else self._next())

    async def _next(self) -> Message:
        """Return the next piece of the body; refuse the body and return a disconnect if it is late or too large."""
        due = self._began + settings.BODY_GRACE_S + self._came / settings.BODY_BYTES_PER_S
        try:
            async with asyncio.timeout_at(due):
                message = await self._receive()
        except TimeoutError:
            return await self._end(_too_slow)
        self._came += len(message.get("body", b""))
        if self._came > self._route.limit:
            return await self._end(lambda: _too_large(self._route.limit))
        if not message.get("more_body", False):
            self.finish()
        return message

    async def _end(self, why: Callable[[], tuple[int, str, str]]) -> Message:
        self.finish()
        self._is_answered = True
        await _refuse(self._scope, self._send, why)
        return {"type": "http.disconnect"}

    async def _send_on(self, message: Message) -> None:
        """Send the application's answer, unless the body was refused meanwhile."""
        if self._is_answered:
            return
        if self._is_cut and message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await self._send(message)


def _count(unfinished: Counter[str], whose: str, most: int) -> bool:
    """Count one more unfinished body; return False if there are as many already."""
    if unfinished[whose] >= most:
        return False
    unfinished[whose] += 1
    return True


async def _identified(route: Route, scope: Scope) -> str:
    try:
        return str(await database_sync_to_async(route.identify, thread_sensitive=False)(scope))
    except Exception as error:  # noqa: BLE001  whatever it is, the application runs into it too, and says it
        log.warning("who sends to %s is not known: %s", scope.get("path", "")[:200], error)
        return ""


def _address(scope: Scope) -> str:
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = (scope.get("client") or ("", 0))[0]
    return f"address:{who(request).address}"


def _coded() -> tuple[int, str, str]:
    return 415, "unsupported_encoding", _("a body must come without Content-Encoding")


def _too_large(limit: int) -> tuple[int, str, str]:
    detail = _("a request here may have {most:,} bytes at most").format(most=limit)
    return 413, "too_large", detail


def _too_slow() -> tuple[int, str, str]:
    detail = _("the body came too slowly: after {grace:g} seconds it must keep to {rate:,} bytes a second").format(
        grace=settings.BODY_GRACE_S, rate=settings.BODY_BYTES_PER_S
    )
    return 408, "too_slow", detail


def _too_many() -> tuple[int, str, str]:
    detail = _("too many requests from here have sent only a part of their bodies; finish those first")
    return 429, "too_many_bodies", detail


async def _refuse(scope: Scope, send: Send, why: Callable[[], tuple[int, str, str]]) -> None:
    with translation.override(_language(scope)):
        status, code, detail = why()
        problem = {
            "type": "about:blank",
            "title": title(status),
            "status": status,
            "code": code,
            "detail": detail,
            "instance": scope.get("path", ""),
            "trace_id": uuid.uuid4().hex,
        }
        log.info("%r: %s, trace %s", problem["instance"], code, problem["trace_id"])
    headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    if status == 429:
        headers.append((b"retry-after", str(round(settings.BODY_GRACE_S)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem).encode()})


def _language(scope: Scope) -> str:
    """Return the language of the sender, by the same cookie and header as everywhere."""
    headers, request = dict(scope["headers"]), HttpRequest()
    request.COOKIES = parse_cookie(headers.get(b"cookie", b"").decode("latin-1"))
    request.META["HTTP_ACCEPT_LANGUAGE"] = headers.get(b"accept-language", b"").decode("latin-1")
    return translation.get_language_from_request(request)
