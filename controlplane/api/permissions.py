"""Permissions of the API: the scopes of tokens, and the permissions that actions need."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.accounts import permissions
from controlplane.accounts.models import Token, User
from controlplane.accounts.permissions import Permit
from controlplane.accounts.roles import ROLES
from controlplane.api.problem import RequestRefused
from controlplane.jobs.refusal import of_others


def signed_in(request: Request) -> User:
    """The requesting user; the permission classes have ensured that there is one."""
    user = request.user
    assert isinstance(user, User)
    return user


def permitted(request: Request, permit: Permit, deed: str) -> User:
    """The requesting user, who must have the permission; raises 403 that says which role may do this."""
    user = signed_in(request)
    if not permissions.may(user, permit):
        named = _(" or ").join(role for role, given in ROLES.items() if permit in given)
        detail = _("only the role {role} may {deed}").format(role=named, deed=deed)
        raise RequestRefused(403, "permission_denied", detail)
    return user


def owned(user: User, row: Any, said: str) -> None:
    """Raise 403 unless this user may act on a row (see :func:`controlplane.jobs.refusal.of_others`)."""
    if refused := of_others(user, row, said):
        raise RequestRefused(refused.status, refused.code, refused.detail)


class Scoped(BasePermission):
    """Refuses requests beyond the token's scopes: reading needs ``read``, anything else the view's ``scope``."""

    def has_permission(self, request: Request, view: Any) -> bool:
        token = request.auth
        if not isinstance(token, Token):
            return True
        needed = "read" if request.method in SAFE_METHODS else getattr(view, "scope", "submit")
        if needed in token.scopes:
            return True
        raise RequestRefused(
            403,
            "scope_missing",
            _("this access token covers {scopes}; this needs the scope {needed}").format(
                scopes=", ".join(token.scopes) or _("nothing"), needed=needed
            ),
        )


class Permitted(BasePermission):
    """Requires the permission that the view's ``permits`` name for an action, with the action in words that follow
    *only the role operator may*."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if (needed := getattr(view, "permits", {}).get(getattr(view, "action", None))) is not None:
            permit, deed = needed
            permitted(request, permit, _(deed))
        return True
