"""Service accounts: those of the projects that the user leads, and a page for each with its tokens."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts import permissions, service, service_accounts
from controlplane.accounts.members import MemberRefused
from controlplane.accounts.models import Project, User
from controlplane.pages import token_form
from controlplane.pages.shell import page, project_named, reader
from controlplane.queries.service_accounts import shown

MOST = 500
DONE = ("changed", "deleted", "revoked")


def _done(request: HttpRequest) -> str:
    said = request.GET.get("done", "")
    return said if said in DONE else ""


def _list(request: HttpRequest, status: int = 200, **more: Any) -> HttpResponse:
    user = reader(request)
    projects = Project.objects.all() if user.is_superuser else permissions.led(user)
    rows = service_accounts.manageable(user).order_by("service_of__name", "username")[:MOST]
    return page(
        request,
        "service_accounts.html",
        {
            "accounts": shown(rows, user),
            "projects": list(projects.order_by("name").values_list("name", flat=True)),
            "roles": service_accounts.CHOICES,
            "done": _done(request),
            **more,
        },
        place="service-accounts",
        crumbs=[(_("Service accounts"), "")],
        status=status,
    )


def _one(request: HttpRequest, row: User, status: int = 200, **more: Any) -> HttpResponse:
    return page(
        request,
        "service_account.html",
        {
            "account": shown([row], reader(request))[0],
            "tokens": row.tokens.order_by("-created_at"),
            "tokens_at": f"/service-accounts/{row.get_username()}/tokens",
            "roles": service_accounts.CHOICES,
            "now": timezone.now(),
            "done": _done(request),
            **token_form.blank(row),
            **more,
        },
        place="service-accounts",
        crumbs=[(_("Service accounts"), "/service-accounts"), (row.get_username(), "")],
        status=status,
    )


def _named(request: HttpRequest, name: str) -> User:
    row = service_accounts.manageable(reader(request)).filter(username=name).first()
    if row is None:
        raise Http404(_("There is no such service account that you may see."))
    return row


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    return _list(request)


@login_required
@never_cache
@require_POST
def create(request: HttpRequest) -> HttpResponse:
    asked = {name: request.POST.get(name, "").strip() for name in ("name", "project", "role", "description")}
    project = project_named(reader(request), asked["project"])
    try:
        row = service_accounts.create(reader(request), project, asked["name"], asked["role"], asked["description"])
    except MemberRefused as error:
        return _list(request, error.status, fault=str(error), asked=asked)
    return redirect(f"/service-accounts/{row.get_username()}")


@login_required
@never_cache
@require_safe
def one(request: HttpRequest, name: str) -> HttpResponse:
    return _one(request, _named(request, name))


@login_required
@never_cache
@require_POST
def change(request: HttpRequest, name: str) -> HttpResponse:
    """Enables or disables an account, or gives it another role."""
    row, role, active = _named(request, name), request.POST.get("role"), request.POST.get("active")
    try:
        is_active = None if active is None else active == "yes"
        service_accounts.change(reader(request), row, role=role, is_active=is_active)
    except MemberRefused as error:
        return _one(request, row, error.status, fault=str(error))
    return redirect(f"/service-accounts/{name}?done=changed")


@login_required
@never_cache
@require_POST
def delete(request: HttpRequest, name: str) -> HttpResponse:
    row = _named(request, name)
    try:
        service_accounts.delete(row)
    except MemberRefused as error:
        return _one(request, _named(request, name), error.status, fault=str(error))
    return redirect("/service-accounts?done=deleted")


@login_required
@never_cache
@require_POST
def make_token(request: HttpRequest, name: str) -> HttpResponse:
    """Creates a token and shows its secret in this answer only."""
    row = _named(request, name)
    status, said = token_form.sent(request, row)
    return _one(request, row, status, **said)


@login_required
@never_cache
@require_POST
def revoke_token(request: HttpRequest, name: str, token: uuid.UUID) -> HttpResponse:
    if not service.revoke_token(_named(request, name), token):
        raise Http404(_("The service account has no such token."))
    return redirect(f"/service-accounts/{name}?done=revoked")
