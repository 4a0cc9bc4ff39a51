"""The user's own page: their roles, access tokens, ways to sign in, and sessions."""

from __future__ import annotations

import uuid
from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.views import ConnectionsView
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth import authenticate, password_validation, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts import audit, guard, service, time_zones
from controlplane.accounts.models import Member, Token, User
from controlplane.accounts.permissions import roles
from controlplane.notifications import notices
from controlplane.notifications.models import NoticeChoice
from controlplane.pages import token_form
from controlplane.pages.shell import page, reader
from controlplane.pages.sign_in import too_many

# The result of an action is shown on the next page, selected by these words in its address.
DONE = (
    "revoked",
    "password",
    "signed-out",
    "ended",
    "disconnected",
    "time-zone",
    "address-asked",
    "address",
    "notices",
)
# Marks of browsers and systems in the user agent, the first that fits: most claim to be several.
BROWSERS = {"Edg/": "Edge", "OPR/": "Opera", "Firefox/": "Firefox", "Chrome/": "Chrome", "Safari/": "Safari"}
SYSTEMS = {
    "Windows": "Windows",
    "Android": "Android",
    "iPhone": "iOS",
    "iPad": "iOS",
    "Mac OS": "macOS",
    "Linux": "Linux",
}
THEMES = ("", "light", "dark")


def _has_password(user: User) -> bool:
    return bool(user.password) and user.has_usable_password()


def _connected(user: User) -> list[tuple[Any, SocialAccount | None]]:
    """Each provider, and the user's account there if one is connected."""
    held = {each.provider: each for each in SocialAccount.objects.filter(user=user)}
    return [(provider, held.get(provider.name)) for provider in settings.OIDC_PROVIDERS.values()]


def _sessions(request: HttpRequest) -> list[UserSession]:
    """The user's sessions; only for a displayed page, because listing them removes ended ones."""
    return UserSession.objects.purge_and_list(request.user) if request.method == "GET" else []


def _browser(agent: str) -> str:
    """The name of a browser and system, or the start of its user agent."""
    name = next((name for mark, name in BROWSERS.items() if mark in agent), "")
    system = next((system for mark, system in SYSTEMS.items() if mark in agent), "")
    return f"{name}, {system}" if name and system else agent[:60]


def user_page(request: HttpRequest, status: int = 200, **said: Any) -> HttpResponse:
    user = reader(request)
    addresses = list(EmailAddress.objects.filter(user=user).order_by("-verified", "-primary", "pk")[:2])
    return page(
        request,
        "user.html",
        {
            "memberships": Member.objects.filter(user=user).select_related("project").order_by("project__name"),
            "roles": roles(user),
            "tokens": Token.objects.filter(user=user),
            "now": timezone.now(),
            **token_form.blank(user),
            "has_password": _has_password(user),
            "second_factor": Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).first(),
            "connected": _connected(user),
            "sessions": [(each, _browser(each.user_agent)) for each in _sessions(request)],
            "zones": time_zones.names(),
            "sends_mail": bool(settings.EMAIL_HOST),
            "addresses": addresses,
            "asked_address": "" if any(each.verified for each in addresses) else user.email,
            "notices": notices.chosen(user),
            "notice_choices": [("", _("none")), *NoticeChoice.Ends.choices],
            "longest": guard.LONGEST_PASSWORD,
            "done": request.GET.get("done") if request.GET.get("done") in DONE else "",
            **said,
        },
        place="user",
        crumbs=[(_("Your user page"), "")],
        status=status,
    )


@login_required
@never_cache
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    return user_page(request)


@login_required
@never_cache
@require_POST
def make_token(request: HttpRequest) -> HttpResponse:
    """Creates a token and shows its secret in this answer only: it is stored as a digest."""
    user = reader(request)
    status, said = token_form.sent(request, user)
    return user_page(request, status, **said)


@login_required
@never_cache
@require_POST
def revoke_token(request: HttpRequest, token: uuid.UUID) -> HttpResponse:
    """Revokes one of the user's tokens; another user's gives 404."""
    if not service.revoke_token(reader(request), token):
        raise Http404(_("You have no such token."))
    return redirect("/user?done=revoked")


@sensitive_post_parameters()
@login_required
@never_cache
@require_POST
def change_password(request: HttpRequest) -> HttpResponse:
    """Changes the password. A present password must be given, guarded like a sign-in. Other browsers are signed out."""
    user = reader(request)
    if user.is_from_directory:
        return user_page(request, 422, password_faults=[_("Your password is that of the directory; change it there.")])
    old, new, again = (request.POST.get(name, "") for name in ("old", "new", "again"))
    if _has_password(user) and authenticate(request, username=user.get_username(), password=old) != user:
        if wait_s := getattr(request, "sign_in_wait_s", 0):
            return user_page(request, 429, password_faults=[too_many(wait_s)])
        return user_page(request, 422, password_faults=[_("This is not your password of now.")])
    if new != again:
        return user_page(request, 422, password_faults=[_("The two new passwords differ.")])
    if len(new) > guard.LONGEST_PASSWORD:
        said = _("A password has at most %(most)s characters.") % {"most": guard.LONGEST_PASSWORD}
        return user_page(request, 422, password_faults=[said])
    try:
        password_validation.validate_password(new, user)
    except ValidationError as error:
        return user_page(request, 422, password_faults=error.messages)
    user.set_password(new)
    with transaction.atomic():
        user.save(update_fields=["password"])
        audit.record("user.password", user)
        update_session_auth_hash(request, user)
        service.end_sessions(user, but=request.session.session_key)
    UserSession.objects.create_from_request(request)
    return redirect("/user?done=password")


@login_required
@never_cache
@require_POST
def sign_out_everywhere(request: HttpRequest) -> HttpResponse:
    """Signs the user out in every other browser; tokens stay valid."""
    service.end_sessions(reader(request), but=request.session.session_key)
    return redirect("/user?done=signed-out")


@login_required
@never_cache
@require_POST
def end_session(request: HttpRequest, number: int) -> HttpResponse:
    """Signs the user out in one other browser; another user's session gives 404."""
    session = UserSession.objects.filter(user=reader(request), pk=number).first()
    if session is None:
        raise Http404(_("You are not signed in there."))
    session.end()
    return redirect("/user?done=ended")


@login_required
@require_POST
def choose_theme(request: HttpRequest) -> HttpResponse:
    """Stores the theme of the user, for browsers without a choice of their own."""
    user, theme = reader(request), request.POST.get("theme", "")
    user.theme = theme if theme in THEMES else ""
    user.save(update_fields=["theme"])
    return redirect("/user")


@login_required
@never_cache
@require_POST
def dismiss_checklist(request: HttpRequest) -> HttpResponse:
    """Takes the first steps off the user's overview, for good."""
    user = reader(request)
    user.has_dismissed_checklist = True
    user.save(update_fields=["has_dismissed_checklist"])
    return redirect("/")


@login_required
@never_cache
@require_POST
def choose_time_zone(request: HttpRequest) -> HttpResponse:
    """Stores the time zone in which pages show times to the user; empty for that of each browser."""
    user, zone = reader(request), request.POST.get("time_zone", "")
    if zone and zone not in time_zones.names():
        fault = _('"%(zone)s" is no time zone; choose one of the list, such as Europe/Berlin.') % {"zone": zone[:64]}
        return user_page(request, 422, zone_fault=fault)
    user.time_zone = zone
    user.save(update_fields=["time_zone"])
    return redirect("/user?done=time-zone")


@login_required
@never_cache
@require_POST
def choose_notices(request: HttpRequest) -> HttpResponse:
    """Stores which ends of jobs are sent to the user by mail, and the present language for these mails."""
    user, ends = reader(request), request.POST.get("ends", "")
    if ends and ends not in NoticeChoice.Ends.values:
        return user_page(request, 422, notice_fault=_("Choose none, failed jobs, or all jobs that end."))
    if ends and not (settings.EMAIL_HOST and EmailAddress.objects.filter(user=user, verified=True).exists()):
        return user_page(request, 422, notice_fault=_("Notices go to an address that you confirmed; set one first."))
    notices.choose(user, ends, get_language() or settings.LANGUAGE_CODE)
    return redirect("/user?done=notices")


@method_decorator(transaction.atomic, name="post")
class Accounts(ConnectionsView):
    """Removes the connection with an account at a provider; the user page shows them."""

    http_method_names = ["get", "post"]
    success_url = "/user?done=disconnected"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return redirect("/user")

    def form_invalid(self, form: Any) -> HttpResponse:
        faults = [fault for found in form.errors.values() for fault in found]
        return user_page(self.request, 422, connection_faults=faults)
