"""Django's ASGI handler, with the whole of a request in one thread.

No view here is asynchronous, and some middleware is not. Django would then switch between the event loop and the
request's thread twice for each middleware, which costs more than a small view itself. Here middleware and view run one
after the other in that thread, as under WSGI.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Final

import django
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestHandler(ASGIHandler):
    """Handles a request in the thread that Django gives it, where its database connection is closed too."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self._answer, thread_sensitive=True)(request)

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        from controlplane.counted import REQUEST_BOUNDS, counter

        began = time.perf_counter()
        answer = self.get_response(request)
        method = request.method if request.method in METHODS else "other"
        labels = (route_of(request), str(method), str(answer.status_code))
        counter.observe("http", labels, time.perf_counter() - began, REQUEST_BOUNDS)
        return answer


def route_of(request: HttpRequest) -> str:
    """Return the pattern of the address, of which there are only as many as the code has; never the address itself."""
    match = request.resolver_match
    if match is not None:
        return _readable(match.route)
    return "/static/" if request.path.startswith("/static/") else "unmatched"


@lru_cache(maxsize=1024)
def _readable(route: str) -> str:
    if route.startswith("admin/"):
        return "/admin/"
    named = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)|<(?:\w+:)?(\w+)>", lambda m: f"{{{m[1] or m[2]}}}", route)
    return "/" + re.sub(r"[\^$\\?]|\\Z", "", named)


def get_application() -> RequestHandler:
    """Return the ASGI application for HTTP, with Django set up."""
    django.setup(set_prefix=False)
    return RequestHandler()
