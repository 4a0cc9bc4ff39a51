"""The form that makes an access token, of oneself or of a service account."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from controlplane.accounts import service
from controlplane.accounts.models import User


def blank(user: User, asked: tuple[str, ...] | list[str] = ("read", "submit")) -> dict[str, Any]:
    """What the template of the form needs; ``asked`` are the scopes that are checked."""
    return {"scopes": [(scope, scope in asked) for scope in service.scopes_of(user)], "most_days": service.MOST_DAYS}


def sent(request: HttpRequest, user: User) -> tuple[int, dict[str, Any]]:
    """Make the token of this user that the form asks for.

    Return the status, and for the template the token's name and secret, which is shown this once, or the fault.
    """
    name, days = request.POST.get("name", "").strip(), request.POST.get("days", "")
    scopes = request.POST.getlist("scopes")
    if not name.isprintable() or not 1 <= len(name) <= 60:
        fault = _("A token needs a name of 1 to 60 characters, for you to know it by.")
    elif not scopes or not set(scopes) <= set(service.scopes_of(user)):
        fault = _("Choose at least one scope of %(scopes)s.") % {"scopes": ", ".join(service.scopes_of(user))}
    elif not (days.isascii() and days.isdigit() and len(days) <= 4 and 1 <= int(days) <= service.MOST_DAYS):
        fault = _("A token is valid for 1 to %(most)s days.") % {"most": service.MOST_DAYS}
    elif user.tokens.count() >= service.MOST_TOKENS:
        fault = _("%(user)s has %(most)s tokens; revoke one first.") % {"user": user, "most": service.MOST_TOKENS}
    else:
        token, secret = service.make_token(user, name, scopes=scopes, life=timedelta(days=int(days)))
        return 201, {"secret": secret, "made": token.name}
    return 422, {"token_fault": fault, "asked_name": name[:60], **blank(user, scopes)}
