"""Signing in by password or by a link that works once, signing out, and the choice of language."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import authenticate, login, logout
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.access.service import redeem

TRIES, WITHIN_S = 10, 600
BACKEND = "django.contrib.auth.backends.ModelBackend"


def _next(request: HttpRequest) -> str:
    """Where the reader wanted to go, if that is a page of this site."""
    wanted = request.POST.get("next") or request.GET.get("next") or "/"
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if safe else "/"


def _tries_key(request: HttpRequest, username: str) -> str:
    return f"sign-in:{request.META.get('REMOTE_ADDR', '')}:{username.lower()[:150]!r}".replace(" ", "_")


@never_cache
def by_password(request: HttpRequest) -> HttpResponse:
    """The form, and what it sends. Ten failures of one name from one address stop further tries for ten minutes."""
    if request.method != "POST":
        if request.user.is_authenticated:
            return redirect(_next(request))
        return render(request, "sign_in.html", {"next": _next(request)})
    username, password = request.POST.get("username", ""), request.POST.get("password", "")
    key = _tries_key(request, username)
    if cache.get(key, 0) >= TRIES:
        said, status = _("Too many failures. Try again in ten minutes."), 429
    else:
        user = authenticate(request, username=username, password=password)
        if user is not None:
            cache.delete(key)
            login(request, user)
            return redirect(_next(request))
        cache.add(key, 0, WITHIN_S)
        cache.incr(key)
        said, status = _("No active user has this name and password."), 401
    values = {"next": _next(request), "said": said, "username": username, "command": settings.SIGN_IN_COMMAND}
    return render(request, "sign_in.html", values, status=status)


@never_cache
@require_http_methods(["GET"])
def by_link(request: HttpRequest, secret: str) -> HttpResponse:
    """A link that signs its user in once, in this browser. A HEAD request does not use it up: it is not allowed."""
    user = redeem(secret)
    if user is None:
        said = _("This link is unknown, used or expired. Make a new one on the server with: %(command)s NAME") % {
            "command": settings.SIGN_IN_COMMAND
        }
        values = {"said": said, "next": "/", "command": settings.SIGN_IN_COMMAND}
        return render(request, "sign_in.html", values, status=410)
    login(request, user, backend=BACKEND)
    return redirect("/")


@require_POST
def out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("/sign-in")
