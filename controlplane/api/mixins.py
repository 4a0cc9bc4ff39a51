"""Behaviour of this API's responses that extends Django REST framework."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpResponse
from django.utils.cache import get_conditional_response
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.api.idempotency import once
from controlplane.api.problem import RequestRefused
from controlplane.queries import names
from controlplane.queries.reading import etag


class ConditionalMixin(APIView):
    """Adds a strong ETag to each answer to a GET, and answers 304 or 412 by ``If-None-Match`` or ``If-Match``."""

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if "Cache-Control" not in response:
            response["Cache-Control"] = "private, no-cache"
        if request.method in {"GET", "HEAD"} and response.status_code == 200 and not response.streaming:
            if hasattr(response, "add_post_render_callback"):
                response.add_post_render_callback(lambda done: conditional(request, done))
            else:
                return conditional(request, response)
        return response


def conditional(request: Request, response: HttpResponse) -> HttpResponse:
    """Add a strong ETag to the answer; 304 without a body if the client has it already."""
    if not response.has_header("ETag"):
        response["ETag"] = etag(response.content)
    return get_conditional_response(request, etag=response["ETag"], response=response) or response


def unless_changed(request: Request, shown: Any, where: str = "") -> None:
    """Raise 412 if the resource changed since the client read it, by its ``If-Match``; without that header nothing is
    checked. ``shown`` is what a GET of ``where``, by default of the same address, answers now."""
    wanted = request.headers.get("If-Match", "*")
    now = etag(names.encode(shown, request.user))
    if wanted != "*" and now not in [one.strip() for one in wanted.split(",")]:
        hint = _("GET {path} has the ETag of what it is now").format(path=where or request.path)
        raise RequestRefused(412, "changed_meanwhile", _("somebody changed this meanwhile; read it again"), hint=hint)


def require_if_match(request: Request) -> None:
    """Raise 428 unless the request says which version of the resource it changes."""
    if "If-Match" not in request.headers:
        detail = _("send If-Match with the ETag of what you read, or * for whatever it is now")
        raise RequestRefused(428, "precondition_required", detail)


class IdempotentCreateMixin(APIView):
    """Lets each POST with an ``Idempotency-Key`` take effect once, however often it is sent."""

    def is_idempotent(self, request: Request) -> bool:
        """Whether keys apply to this POST; not to one that changes nothing."""
        return True

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        post = getattr(self, "post", None)
        if request.method == "POST" and post is not None and self.is_idempotent(request):
            self.post = lambda *given, **named: once(request, partial(post, *given, **named))
