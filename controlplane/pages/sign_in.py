"""Signing in by password or by a link that works once, signing out, and the choice of language."""

from __future__ import annotations

from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import authenticate, login, logout
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts import guard
from controlplane.accounts.service import redeem

BACKEND = "controlplane.accounts.guard.GuardedBackend"


def _next(request: HttpRequest) -> str:
    """Where the reader wanted to go, if that is a page of this site."""
    wanted = request.POST.get("next") or request.GET.get("next") or "/"
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if safe and wanted.startswith("/") else "/"


def too_many(seconds: int) -> str:
    """What is said to whoever has failed too often."""
    return _("Too many failures. Try again in %(minutes)s min.") % {"minutes": -(-seconds // 60)}


def _page(request: HttpRequest, status: int, **values: str) -> HttpResponse:
    """The form, with how the person who runs the server makes a link."""
    shown = {"next": "/", "command": settings.SIGN_IN_COMMAND, **values}
    return render(request, "sign_in.html", shown, status=status)


@never_cache
def by_password(request: HttpRequest) -> HttpResponse:
    """The form, and what it sends. How many failures stop further tries is in ``access.guard``."""
    if request.method != "POST":
        if request.user.is_authenticated:
            return redirect(_next(request))
        return _page(request, 200, next=_next(request))
    username, password = request.POST.get("username", ""), request.POST.get("password", "")
    user = authenticate(request, username=username, password=password)
    if user is not None:
        login(request, user)
        return redirect(_next(request))
    said, status = _("No active user has this name and password."), 401
    if wait_s := getattr(request, "sign_in_wait_s", 0):
        said, status = too_many(wait_s), 429
    response = _page(request, status, next=_next(request), said=said, username=username)
    if wait_s:
        response["Retry-After"] = str(wait_s)
    return response


@never_cache
def to_administer(request: HttpRequest) -> HttpResponse:
    """The door of the administration is the one sign-in; whoever is signed in and may not administer is told so."""
    if request.user.is_authenticated and not getattr(request.user, "is_staff", False):
        said = _("You are signed in as %(user)s, who may not administer.") % {"user": request.user.get_username()}
        return _page(request, 403, next=_next(request), said=said)
    return redirect(f"/sign-in?{urlencode({'next': _next(request)})}")


@never_cache
@require_http_methods(["GET"])
def by_link(request: HttpRequest, secret: str) -> HttpResponse:
    """A link that signs its user in once, in this browser. A HEAD request does not use it up: it is not allowed."""
    one = guard.who(request)
    if wait_s := guard.admit(one):
        response = _page(request, 429, said=too_many(wait_s))
        response["Retry-After"] = str(wait_s)
        return response
    user = redeem(secret)
    if user is None:
        said = _("This link is unknown, used or expired. Make a new one on the server with: %(command)s NAME") % {
            "command": settings.SIGN_IN_COMMAND
        }
        return _page(request, 410, said=said)
    guard.welcome(one)
    login(request, user, backend=BACKEND)
    return redirect("/")


@require_POST
def out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("/sign-in")
