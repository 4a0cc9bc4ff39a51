"""The page on which a person signs a program in: they enter its code, see which program it is, and confirm or
refuse."""

from __future__ import annotations

from typing import Any, cast

from allauth.core.ratelimit import consume
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from redis.exceptions import RedisError

from controlplane.accounts import device_codes, service
from controlplane.accounts.models import Token, User


def _page(request: HttpRequest, status: int = 200, **values: Any) -> HttpResponse:
    return render(request, "device_login.html", values, status=status)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def show(request: HttpRequest) -> HttpResponse:
    """Shows the field for the code; after a POST the program of that code; and after an answer its result.

    The code is never taken from the address, so nobody confirms by following a link.
    """
    if request.method == "GET":
        return _page(request)
    user = cast(User, request.user)
    try:
        if not consume(request, action="device_code"):
            return _page(request, 429, said=_("You have tried too many codes. Wait a few minutes, and try again."))
    except RedisError:
        said = _("Codes cannot be checked just now, because Redis does not answer. Try again in a moment.")
        return _page(request, 503, said=said)
    code = device_codes.waiting(request.POST.get("code", ""))
    if code is None:
        return _page(
            request, 422, said=_("No program waits under this code. Codes are valid for ten minutes, and once.")
        )
    scopes = device_codes.scopes_for(code, user)
    if Token.objects.filter(user=user).count() >= service.MOST_TOKENS:
        said = _("You have %(most)s tokens; revoke one first.") % {"most": service.MOST_TOKENS}
        return _page(request, 422, said=said)
    if not scopes:
        said = _("This program asks for %(scopes)s, which no token of yours can cover.") % {
            "scopes": ", ".join(code.scopes)
        }
        return _page(request, 422, said=said)
    if request.POST.get("answer") not in {"confirm", "refuse"}:
        age_s = round((timezone.now() - code.created_at).total_seconds())
        return _page(request, code=code, shown=device_codes.shown(code.code), scopes=scopes, age_s=age_s)
    confirmed = request.POST["answer"] == "confirm"
    if not device_codes.answer(code, user, confirmed=confirmed):
        return _page(request, 409, said=_("This code was answered already."))
    return _page(request, done="confirmed" if confirmed else "refused", name=code.name)
