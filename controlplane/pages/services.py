"""Inference services: a list with how each stands, and a page for each with its replicas, revisions and last hour."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts.permissions import may_end
from controlplane.documents import to_yaml
from controlplane.pages.shell import page, reader
from controlplane.queries import services
from controlplane.queries.refusals import Unseen
from controlplane.services import service
from controlplane.services.file import MOST_REPLICAS
from controlplane.services.models import InferenceService

MOST = 500
MARKS = {
    "READY": "running",
    "UPDATING": "pending",
    "STARTING": "pending",
    "LOADING": "pending",
    "PENDING": "pending",
    "ASLEEP": "held",
    "DRAINING": "held",
    "UNHEALTHY": "failed",
    "FAILED": "failed",
    "ENDED": "completed",
}
PROMOTION_MARKS = {
    "WAITING": "pending",
    "TRIAL": "pending",
    "PROMOTED": "completed",
    "REFUSED": "failed",
    "ROLLED_BACK": "failed",
    "REPLACED": "held",
}


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    rows = services.visible(user).order_by("name", "project__name")[:MOST]
    found = services.shown(rows, user)
    return page(
        request,
        "services.html",
        {"services": [(one, MARKS[one.state]) for one in found]},
        place="services",
        crumbs=[(_("Services"), "")],
    )


@login_required
@require_safe
def one(request: HttpRequest, number: int) -> HttpResponse:
    return _one(request, _found(request, number))


def _one(request: HttpRequest, row: InferenceService, status: int = 200, **more: Any) -> HttpResponse:
    user = reader(request)
    detail = services.detail(row, user)
    traffic, objective = detail.service.traffic, detail.settings["slo_first_byte_s"]
    return page(
        request,
        "service.html",
        {
            "service": detail.service,
            "mark": MARKS[detail.service.state],
            "traffic": traffic,
            "objective_s": objective,
            "objective_share": detail.settings["slo_share"],
            "keeps_slo": None
            if traffic.within_slo is None
            else traffic.within_slo * 100 >= detail.settings["slo_share"],
            "within_slo": None if traffic.within_slo is None else f"{traffic.within_slo:.1%}",
            "replicas": [(one, MARKS[one.state]) for one in detail.replicas],
            "revisions": detail.revisions,
            "promotions": [(one, PROMOTION_MARKS[one.state], _number(one.value)) for one in detail.promotions],
            "minutes": detail.minutes[:15],
            "file": to_yaml(detail.file),
            "may_act": may_end(user, owner_id=row.user_id, project_id=row.project_id),
            "most": MOST_REPLICAS,
            **more,
        },
        place="services",
        crumbs=[(_("Services"), "/services"), (row.name, "")],
        status=status,
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


@login_required
@require_POST
def act(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    """Scales, rolls back or deletes a service."""
    row = _found(request, number)
    if not may_end(reader(request), owner_id=row.user_id, project_id=row.project_id):
        raise PermissionDenied
    now = timezone.now()
    try:
        if verb == "delete":
            service.delete(row, now)
            return redirect("/services")
        if verb == "rollback":
            service.roll_back(row, _whole(request, "revision", 1, 2**31 - 1), now)
        else:
            low, high = (_whole(request, name, 0, MOST_REPLICAS) for name in ("min", "max"))
            service.scale(row, low, high, now)
    except service.ServiceRefused as refused:
        return _one(request, _found(request, number), refused.status, fault=str(refused))
    return redirect(f"/services/{row.pk}")


def _whole(request: HttpRequest, name: str, low: int, high: int) -> int | None:
    """A number of a form; None if it is left empty. Raises ``ServiceRefused``."""
    text = request.POST.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 11 and low <= int(text) <= high):
        said = _("{name} must be a whole number from {low} to {high}")
        raise service.ServiceRefused("invalid", said.format(name=name, low=low, high=high))
    return int(text)


def _found(request: HttpRequest, number: int) -> InferenceService:
    row = services.visible(reader(request)).filter(pk=number).first()
    if row is None:
        raise Unseen(_("service {name}").format(name=number))
    return row
