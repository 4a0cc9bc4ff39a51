"""A cap on request bodies, before anything is read to memory or disk.

Django under ASGI spools the whole body before any view runs; this refuses what no view would accept, by its declared
length at once, or as soon as what has come exceeds the cap.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.http import HttpRequest, parse_cookie
from django.utils import translation
from django.utils.translation import gettext as _

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyLimit:
    """Passes requests on to ``application`` unless their body has more than ``limit`` bytes.

    ``wider`` has the limits of the addresses below a prefix that take more; the first that fits counts.
    """

    def __init__(self, application: Application, limit: int, wider: Mapping[str, int] | None = None) -> None:
        self._application = application
        self._limit = limit
        self._wider = dict(wider or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        limit = next((most for prefix, most in self._wider.items() if path.startswith(prefix)), self._limit)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
            await self._refuse(scope, send, limit)
            return
        came, answered = 0, False

        async def counting() -> Mapping[str, Any]:
            nonlocal came, answered
            message = await receive()
            came += len(message.get("body", b""))
            if came > limit and not answered:
                answered = True
                await self._refuse(scope, send, limit)
            # The application sees a client that has gone; what it would still answer is dropped below.
            return {"type": "http.disconnect"} if answered else message

        async def guarded(message: Mapping[str, Any]) -> None:
            if not answered:
                await send(message)

        await self._application(scope, counting, guarded)

    async def _refuse(self, scope: Scope, send: Send, limit: int) -> None:
        with translation.override(_language(scope)):
            problem = {
                "type": "about:blank",
                "title": _("Content Too Large"),
                "status": 413,
                "code": "too_large",
                "detail": _("a request here may have {most:,} bytes at most").format(most=limit),
                "instance": scope.get("path", ""),
            }
        headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(problem).encode()})


def _language(scope: Scope) -> str:
    """The language of whoever sent this, by the same cookie and header as everywhere."""
    headers, request = dict(scope["headers"]), HttpRequest()
    request.COOKIES = parse_cookie(headers.get(b"cookie", b"").decode("latin-1"))
    request.META["HTTP_ACCEPT_LANGUAGE"] = headers.get(b"accept-language", b"").decode("latin-1")
    return translation.get_language_from_request(request)
