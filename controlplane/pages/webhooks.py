"""The webhooks of a project: a list with a form for a new one, and for each a page to change, test and delete it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts import permissions
from controlplane.accounts.keys import KeyUnavailable
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit, visible_projects
from controlplane.natural import natural_key
from controlplane.notifications import tried_deliveries, webhook_delivery, webhooks
from controlplane.notifications.models import TriedDelivery, Webhook
from controlplane.pages.shell import page, project_named, reader
from controlplane.queries import webhooks as queries
from controlplane.queries.refusals import Unseen
from scheduler.core.model.lifecycle import State

DONE = ("changed", "on", "off", "deleted", "resent")
# Their order on the form: as a job goes through them.
STATES: Sequence[str] = [*(state for state in State if state not in webhooks.USUAL), *webhooks.USUAL]


def _offered(user: User) -> list[str]:
    """The names of the projects whose webhooks this user may see and change."""
    every = permissions.may(user, Permit.CHANGE_WEBHOOKS)
    projects = visible_projects(user) if every else permissions.led(user)
    return sorted(projects.values_list("name", flat=True), key=natural_key)


def _project(user: User, name: str) -> Project:
    project = project_named(user, name)
    if not webhooks.may_change(user, project):
        raise PermissionDenied
    return project


def _webhook(request: HttpRequest, project: str, name: str) -> Webhook:
    row = Webhook.objects.filter(project=_project(reader(request), project), name=name).first()
    if row is None:
        raise Unseen(_("webhook {name}").format(name=name))
    return row


def _asked(request: HttpRequest) -> dict[str, Any]:
    return {
        "name": request.POST.get("name", "").strip()[:200],
        "url": request.POST.get("url", "").strip()[:1_000],
        "format": request.POST.get("format", "")[:20],
        "states": [state for state in STATES if state in request.POST.getlist("states")],
        "budgets": request.POST.get("budgets") == "yes",
        "without_secret": request.POST.get("without_secret") == "yes",
    }


def _list(request: HttpRequest, project: Project | None, status: int = 200, **more: Any) -> HttpResponse:
    done = request.GET.get("done", "")
    return page(
        request,
        "webhooks.html",
        {
            "project": project,
            "projects": _offered(reader(request)),
            "webhooks": queries.of_project(project).results if project else [],
            "asked": {"states": webhooks.USUAL, "format": "cloudevents"},
            "formats": Webhook.Format.choices,
            "states": STATES,
            "done": done if done in DONE else "",
            **more,
        },
        place="webhooks",
        crumbs=[(_("Webhooks"), "")],
        status=status,
    )


def _one(request: HttpRequest, row: Webhook, status: int = 200, **more: Any) -> HttpResponse:
    done = request.GET.get("done", "")
    shown = queries.shown(row)
    return page(
        request,
        "webhook.html",
        {
            "project": row.project,
            "webhook": shown,
            "tried": queries.tried_of(row).results,
            "at": f"/webhooks/{row.project.name}/{row.name}",
            "asked": {"url": row.url, "states": row.states, "format": row.format, "budgets": row.budgets},
            "formats": Webhook.Format.choices,
            "states": STATES,
            "done": done if done in DONE else "",
            **more,
        },
        place="webhooks",
        crumbs=[(_("Webhooks"), f"/webhooks?{urlencode({'project': row.project.name})}"), (row.name, "")],
        status=status,
    )


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    """The webhooks of the project that is named, else of the user's default one, else of the first."""
    user, asked = reader(request), request.GET.get("project", "")
    if asked:
        return _list(request, _project(user, asked))
    offered, default = _offered(user), user.default_project
    name = default.name if default is not None and default.name in offered else next(iter(offered), "")
    return _list(request, _project(user, name) if name else None)


@sensitive_post_parameters("url", "secret")
@login_required
@never_cache
@require_POST
def add(request: HttpRequest) -> HttpResponse:
    """Adds a webhook, and shows the key of its signatures in this answer only."""
    user, asked = reader(request), _asked(request)
    project = _project(user, request.POST.get("project", ""))
    if Webhook.objects.filter(project=project, name=asked["name"]).exists():
        said = _("there is a webhook {name} already; its page changes it").format(name=asked["name"])
        return _list(request, project, 409, asked=asked, faults={"name": said})
    try:
        kind = _format(asked)
        more = {"budgets": asked["budgets"], "secret": _secret(request, asked)}
        row, key = webhooks.put(user, project, asked["name"], asked["url"], asked["states"], kind, **more)
    except webhooks.WebhookRefused as error:
        return _list(request, project, error.status, asked=asked, faults={error.field or "form": str(error)})
    except KeyUnavailable as error:
        return _list(request, project, 503, asked=asked, faults={"form": str(error)})
    return _one(request, row, key=key)


def _secret(request: HttpRequest, asked: dict[str, Any]) -> str | None:
    """Return the secret that was typed; None where the field was left empty, so that what is there stays."""
    return "" if asked["without_secret"] else request.POST.get("secret", "").strip()[:1_000] or None


def _format(asked: dict[str, Any]) -> str:
    if asked["format"] not in Webhook.Format.values:
        raise webhooks.WebhookRefused("invalid", _("choose one of the formats"), "format")
    return str(asked["format"])


@login_required
@require_safe
def one(request: HttpRequest, project: str, name: str) -> HttpResponse:
    return _one(request, _webhook(request, project, name))


@sensitive_post_parameters("url", "secret")
@login_required
@never_cache
@require_POST
def act(request: HttpRequest, project: str, name: str, verb: str) -> HttpResponse:
    """Changes a webhook, switches it off or on, tests it or deletes it."""
    row, user = _webhook(request, project, name), reader(request)
    if verb == "test":
        try:
            return _one(request, row, tested=queries.tested(webhook_delivery.test(row)))
        except webhook_delivery.TestedBefore as error:
            return _one(request, row, 429, faults={"test": str(error)})
        except KeyUnavailable as error:
            return _one(request, row, 503, faults={"test": str(error)})
    if verb == "delete":
        webhooks.delete(row.project, name)
        return redirect(f"/webhooks?{urlencode({'project': project, 'done': 'deleted'})}")
    if verb in ("on", "off"):
        webhooks.change(user, row, is_active=verb == "on")
        return redirect(f"/webhooks/{project}/{name}?done={verb}")
    asked = _asked(request)
    try:
        more = {"budgets": asked["budgets"], "secret": _secret(request, asked)}
        webhooks.change(user, row, url=asked["url"], states=asked["states"], kind=_format(asked), **more)
    except webhooks.WebhookRefused as error:
        return _one(request, row, error.status, asked=asked, faults={error.field or "form": str(error)})
    except KeyUnavailable as error:
        return _one(request, row, 503, asked=asked, faults={"form": str(error)})
    return redirect(f"/webhooks/{project}/{name}?done=changed")


@login_required
@require_POST
def resend(request: HttpRequest, project: str, name: str, event: uuid.UUID) -> HttpResponse:
    """Has a delivery that failed sent again."""
    row = _webhook(request, project, name)
    try:
        tried_deliveries.resend(row, event)
    except TriedDelivery.DoesNotExist:
        raise Unseen(_("delivery {name}").format(name=event)) from None
    except tried_deliveries.NotSentAgain as error:
        return _one(request, row, 409, faults={"resend": str(error)})
    return redirect(f"/webhooks/{project}/{name}?done=resent")
