"""The secrets of a project: a form that sets one, and their names. No page holds a value, not even after a mistake."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts import secrets
from controlplane.accounts.keys import KeyUnavailable
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import visible_projects
from controlplane.natural import natural_key
from controlplane.pages.shell import page, project_named, reader

DONE = ("set", "deleted")


def _chosen(user: User, name: str) -> Project | None:
    """The project of this name, else the user's default one, else the first; None if they may see none."""
    if name:
        return project_named(user, name)
    projects = visible_projects(user)
    default = user.default_project
    return default if default in projects else projects.order_by("name").first()


def _page(request: HttpRequest, project: Project | None, status: int = 200, **values: Any) -> HttpResponse:
    user = reader(request)
    done = request.GET.get("done", "")
    return page(
        request,
        "secrets.html",
        {
            "project": project,
            "projects": sorted(visible_projects(user).values_list("name", flat=True), key=natural_key),
            "secrets": secrets.of(project) if project else [],
            "may_set": project is not None and secrets.may_set(user, project),
            "may_delete": project is not None and secrets.may_delete(user, project),
            "largest": secrets.LARGEST,
            "done": done if done in DONE else "",
            **values,
        },
        place="secrets",
        crumbs=[(_("Secrets"), "")],
        status=status,
    )


def _back(project: Project, done: str) -> HttpResponse:
    return redirect(f"/secrets?{urlencode({'project': project.name, 'done': done})}")


@login_required
@never_cache
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    return _page(request, _chosen(reader(request), request.GET.get("project", "")))


@sensitive_post_parameters("value")
@login_required
@never_cache
@require_POST
def put(request: HttpRequest) -> HttpResponse:
    """Sets a secret. Browsers send the lines of a form with CR LF; they are stored with LF."""
    project = _chosen(reader(request), request.POST.get("project", ""))
    if project is None:
        raise Http404(_("There is no such project that you may see."))
    name, value = request.POST.get("name", "").strip(), request.POST.get("value", "").replace("\r\n", "\n")
    try:
        secrets.put(reader(request), project, name, value)
    except secrets.SecretRefused as error:
        return _page(request, project, error.status, fault=str(error), asked_name=name[:128])
    except KeyUnavailable as error:
        return _page(request, project, 503, fault=str(error), asked_name=name[:128])
    return _back(project, "set")


@login_required
@never_cache
@require_POST
def delete(request: HttpRequest) -> HttpResponse:
    """Deletes a secret; stages that need it keep waiting."""
    project = _chosen(reader(request), request.POST.get("project", ""))
    if project is None:
        raise Http404(_("There is no such project that you may see."))
    try:
        secrets.delete(reader(request), project, request.POST.get("name", ""))
    except secrets.SecretRefused as error:
        return _page(request, project, error.status, fault=str(error))
    return _back(project, "deleted")
