"""Signing in by password, by a provider or by a one-time link, with the second factor, and signing out."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

from allauth.account import views as account
from allauth.account.utils import perform_login
from allauth.mfa.base import views as mfa
from allauth.socialaccount import providers
from allauth.socialaccount.providers.openid_connect import views as openid
from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST
from redis.exceptions import RedisError
from requests import RequestException

from controlplane.accounts import guard
from controlplane.accounts.service import redeem, user_of_link

# allauth finds provider classes in this register, which it fills only if it makes the addresses itself.
providers.registry.load()


def _next(request: HttpRequest) -> str:
    """The page to return to, if it is one of this site."""
    wanted = request.POST.get("next") or request.GET.get("next") or "/"
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if safe and wanted.startswith("/") else "/"


def too_many(seconds: int) -> str:
    """The message after too many failures."""
    return _("Too many failures. Try again in %(minutes)s min.") % {"minutes": -(-seconds // 60)}


def _shown(**values: Any) -> dict[str, Any]:
    """The values of the form: how to get a link, whether passwords are reset by mail, and the providers."""
    usual = {"next": "/", "command": settings.SIGN_IN_COMMAND, "resets_by_mail": bool(settings.EMAIL_HOST)}
    return {**usual, "providers": settings.OIDC_PROVIDERS.values(), **values}


def _page(request: HttpRequest, status: int, **values: str) -> HttpResponse:
    return render(request, "sign_in.html", _shown(**values), status=status)


class SignIn(account.LoginView):
    """The sign-in form and its submission. Failures are limited in ``accounts.guard``."""

    template_name = "sign_in.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), **_shown(next=_next(self.request))}

    def form_invalid(self, form: Any) -> HttpResponse:
        said, status = _("No active user has this name and password."), 401
        if wait_s := getattr(self.request, "sign_in_wait_s", 0):
            said, status = too_many(wait_s), 429
        values = self.get_context_data(form=form, said=said, username=form.data.get("username", ""))
        response = render(self.request, self.template_name, values, status=status)
        if wait_s:
            response["Retry-After"] = str(wait_s)
        return response


class SecondFactor(mfa.AuthenticateView):
    """Checks the second factor after the password. Attempts are counted in Redis: without it none is accepted."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return super().dispatch(request, *args, **kwargs)
        except RedisError:
            said = _("Codes cannot be checked just now, because Redis does not answer. Try again in a moment.")
            return _page(request, 503, said=said)


@never_cache
def to_administer(request: HttpRequest) -> HttpResponse:
    """Redirects the administration's sign-in to the only sign-in page; a user without that permission gets a
    message."""
    if request.user.is_authenticated and not getattr(request.user, "is_staff", False):
        said = _("You are signed in as %(user)s, who may not administer.") % {"user": request.user.get_username()}
        return _page(request, 403, next=_next(request), said=said)
    return redirect(f"/sign-in?{urlencode({'next': _next(request)})}")


@never_cache
@require_http_methods(["GET", "POST"])
def by_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Signs a user in once by a link, in the browser that confirms it; merely opening it does not use it up."""
    one = guard.who(request)
    if wait_s := guard.admit(one):
        response = _page(request, 429, said=too_many(wait_s))
        response["Retry-After"] = str(wait_s)
        return response
    user = redeem(secret) if request.method == "POST" else user_of_link(secret)
    if user is None:
        said = _("This link is unknown, used or expired. Make a new one on the server with: %(command)s NAME") % {
            "command": settings.SIGN_IN_COMMAND
        }
        return _page(request, 410, said=said)
    guard.succeeded(one)
    if request.method != "POST":
        return render(request, "sign_in_link.html", {"named": user.get_username()})
    logout(request)
    return perform_login(request, user, redirect_url="/")


@never_cache
@require_POST
def by_provider(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Sends the user to a provider.

    By a page that navigates there instead of a redirect, because the content security policy restricts form targets to
    this site.
    """
    try:
        response = openid.login(request, provider_id)
    except RequestException:
        return render(request, "socialaccount/authentication_error.html", status=503)
    if response.status_code == 302 and urlsplit(response["Location"]).netloc:
        provider = settings.OIDC_PROVIDERS[provider_id]
        return render(request, "sign_in_away.html", {"to": response["Location"], "provider": provider.title})
    return response


@require_POST
def out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("/sign-in")
