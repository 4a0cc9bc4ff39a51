"""Functions: a list with how each stands, and a page for each with its calls, queue, replicas and code."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts.permissions import may_end
from controlplane.documents import to_yaml
from controlplane.functions import calls, deploy
from controlplane.functions.models import DeployedFunction
from controlplane.pages.services import MARKS, MOST
from controlplane.pages.shell import page, reader
from controlplane.queries import functions
from controlplane.queries.refusals import Unseen
from controlplane.services.service import ServiceRefused

NEWEST_CALLS = 20
NEWEST_MINUTES = 15
# How a call is shown: the look of its mark and the word, as in the counts of the queue.
CALL_MARKS = {
    "QUEUED": ("pending", gettext_lazy("in the queue")),
    "RUNNING": ("running", gettext_lazy("running")),
    "DONE": ("completed", gettext_lazy("done")),
    "DEAD": ("failed", gettext_lazy("given up")),
}


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    rows = functions.visible(user).order_by("service__name", "service__project__name")[:MOST]
    return page(
        request,
        "functions.html",
        {"functions": [(one, MARKS[one.state]) for one in functions.shown(rows, user)]},
        place="functions",
        crumbs=[(_("Functions"), "")],
    )


@login_required
@require_safe
def one(request: HttpRequest, number: int) -> HttpResponse:
    return _one(request, _found(request, number))


def _one(request: HttpRequest, row: DeployedFunction, status: int = 200, fault: str = "") -> HttpResponse:
    user = reader(request)
    detail = functions.detail(row, user)
    newest = row.calls.select_related("user")[:NEWEST_CALLS]
    return page(
        request,
        "function.html",
        {
            "function": detail.function,
            "mark": MARKS[detail.function.state],
            "traffic": detail.function.traffic,
            "queue": detail.function.queue,
            "replicas": [(one, MARKS[one.state]) for one in detail.replicas],
            "minutes": detail.minutes[:NEWEST_MINUTES],
            "calls": [(one, CALL_MARKS[one.state]) for one in functions.shown_calls(newest, row, user)],
            "code": detail.code,
            "template": to_yaml(detail.template) if detail.template else "",
            "may_act": may_end(user, owner_id=row.service.user_id, project_id=row.service.project_id),
            "fault": fault,
        },
        place="functions",
        crumbs=[(_("Functions"), "/functions"), (row.service.name, "")],
        status=status,
    )


@login_required
@require_POST
def delete(request: HttpRequest, number: int) -> HttpResponse:
    row = _acted(request, number)
    try:
        deploy.delete(row, timezone.now())
    except ServiceRefused as refused:
        return _one(request, row, refused.status, str(refused))
    return redirect("/functions")


@login_required
@require_POST
def retry(request: HttpRequest, number: int, call: int) -> HttpResponse:
    """Queues a call that was given up once more."""
    row = _acted(request, number)
    found = row.calls.filter(pk=call).first()
    if found is None:
        raise Unseen(_("call"))
    try:
        calls.again(found, timezone.now())
    except ServiceRefused as refused:
        return _one(request, row, refused.status, str(refused))
    return redirect(f"/functions/{row.pk}")


def _acted(request: HttpRequest, number: int) -> DeployedFunction:
    """The function, which this user may change. Raises ``PermissionDenied``."""
    row = _found(request, number)
    if not may_end(reader(request), owner_id=row.service.user_id, project_id=row.service.project_id):
        raise PermissionDenied
    return row


def _found(request: HttpRequest, number: int) -> DeployedFunction:
    row = functions.visible(reader(request)).filter(pk=number).first()
    if row is None:
        raise Unseen(_("function {name}").format(name=number))
    return row
