"""Django's ASGI handler, with the whole of a request in one thread.

No view here is asynchronous, and some middleware is not. Django would then switch between the event loop and the
request's thread twice for each middleware, which costs more than a small view itself. Here middleware and view run one
after the other in that thread, as under WSGI.
"""

from __future__ import annotations

import django
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase


class RequestHandler(ASGIHandler):
    """Handles a request in the thread that Django gives it, where its database connection is closed too."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)


def get_application() -> RequestHandler:
    """Return the ASGI application for HTTP, with Django set up."""
    django.setup(set_prefix=False)
    return RequestHandler()
