"""Answers a GET of the API inside this process, so that a browser's socket sends exactly what that GET returns."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import Resolver404, resolve
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.sentences import title
from controlplane.wellformed import fault_in, fault_of_query, problem

PREFIX = "/api/v1/"
LONGEST = 2000


def read(address: str, user: User) -> tuple[int, str, bytes]:
    """Status, ETag and JSON of a GET of ``address`` (a path with its query, under /api/v1) as this user.

    A text (a log) is returned as ``{"text": ..., "next_offset": ...}``. Never raises for an invalid address, whose
    status tells that. Blocks for the database: call it in a thread.
    """
    if fault := fault_in(address) or fault_of_query(address.partition("?")[2]):
        return 400, "", problem(fault)
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or not parts.path.startswith(PREFIX) or len(address) > LONGEST:
        return 404, "", _problem(_("a topic is an address under {prefix}").format(prefix=PREFIX))
    try:
        match = resolve(parts.path)
    except Resolver404:
        return 404, "", _problem(_("there is nothing at this address"))
    request = HttpRequest()
    request.method, request.path, request.path_info = "GET", parts.path, parts.path
    request.GET = QueryDict(parts.query)
    request.META |= {"REQUEST_METHOD": "GET", "SERVER_NAME": _server_name(), "SERVER_PORT": "80"}
    request.META["QUERY_STRING"] = parts.query
    request.user = user
    request.is_inside = True  # type: ignore[attr-defined]
    request.resolver_match = match
    response = match.func(request, *match.args, **match.kwargs)
    if response.streaming:
        return 404, "", _problem(_("there is nothing at this address"))
    if hasattr(response, "render"):
        response = response.render()
    return response.status_code, response.get("ETag", ""), _json(response)


def _server_name() -> str:
    """A host name of this server that passes Django's host validation."""
    return next((host for host in settings.ALLOWED_HOSTS if not host.startswith((".", "*", "["))), "localhost")


def _json(response: HttpResponse) -> bytes:
    if not response.get("Content-Type", "").startswith("text/"):
        return response.content
    text = response.content.decode("utf-8", errors="replace")
    return msgspec.json.encode({"text": text, "next_offset": int(response.get("X-Log-Next-Offset", "0"))})


def _problem(detail: str) -> bytes:
    return msgspec.json.encode({"status": 404, "code": "not_found", "title": title(404), "detail": detail})
