"""Who may do what by way of the API: what a token covers, and what only staff may do."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.accounts import permissions
from controlplane.accounts.models import Token, User
from controlplane.api.problem import Refused


def signed_in(request: Request) -> User:
    """The user who asks; the permissions have made sure that there is one."""
    user = request.user
    assert isinstance(user, User)
    return user


def staff(request: Request, deed: str) -> User:
    """The user who asks, who must run the cluster; raises 403 that says what only staff may do."""
    user = signed_in(request)
    if not permissions.is_staff(user):
        raise Refused(403, "permission_denied", _("only staff may {deed}").format(deed=deed))
    return user


class Scoped(BasePermission):
    """Refuses what the token's scopes do not cover: reading needs ``read``, anything else what the view names."""

    def has_permission(self, request: Request, view: Any) -> bool:
        token = request.auth
        if not isinstance(token, Token):
            return True
        needed = "read" if request.method in SAFE_METHODS else getattr(view, "scope", "submit")
        if needed in token.scopes:
            return True
        raise Refused(
            403,
            "scope_missing",
            _("this access token covers {scopes}; this needs the scope {needed}").format(
                scopes=", ".join(token.scopes) or _("nothing"), needed=needed
            ),
        )


class StaffDeeds(BasePermission):
    """Refuses what only staff may do: the view's ``staff_deeds`` name these actions, each with what it does in words
    that follow *only staff may*."""

    def has_permission(self, request: Request, view: Any) -> bool:
        deed = getattr(view, "staff_deeds", {}).get(getattr(view, "action", None))
        if deed is not None:
            staff(request, _(deed))
        return True
