"""Schedules: a list with the next and the last time of each, a page for each, and a form for a new one."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts.permissions import may_end, submittable
from controlplane.documents import Unreadable, to_yaml
from controlplane.jobs import masked
from controlplane.jobs.spec import InvalidSpec
from controlplane.pages.shell import page, reader
from controlplane.pages.submit import copied_job, job_file
from controlplane.queries import schedules
from controlplane.queries.refusals import Unseen
from controlplane.schedules import service
from controlplane.schedules.models import Schedule

SAMPLE = 'run: echo "good morning from $(hostname)"\ntime_limit: 10m\n'
FIELDS = ("name", "cron", "zone", "overlap", "catch_up", "file")
MOST = 500


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    return _list(request, {"file": _file_of(request), "zone": timezone.get_current_timezone_name()})


def _list(request: HttpRequest, asked: dict[str, str], status: int = 200, **more: Any) -> HttpResponse:
    user = reader(request)
    rows = schedules.visible(user).order_by("name", "project__name")[:MOST]
    return page(
        request,
        "schedules.html",
        {
            "schedules": schedules.shown(rows, user),
            "may_make": submittable(user).exists(),
            "asked": asked,
            "overlaps": Schedule.Overlap.choices,
            "catch_ups": Schedule.CatchUp.choices,
            **more,
        },
        place="schedules",
        crumbs=[(_("Schedules"), "")],
        status=status,
    )


def _file_of(request: HttpRequest) -> str:
    """The file of the job that ``?from=`` names, if it may be seen, or a small example."""
    row = copied_job(request)
    return to_yaml(masked.shown(row.spec)) if row else SAMPLE


@login_required
@require_POST
def make(request: HttpRequest) -> HttpResponse:
    """Makes a schedule, or shows the form again with what is wrong."""
    asked = {name: request.POST.get(name, "") for name in FIELDS}
    try:
        spec = job_file(asked["file"].encode())
        settings = {name: asked[name] for name in ("cron", "zone", "overlap", "catch_up")}
        row = service.make(reader(request), timezone.now(), name=asked["name"].strip(), job=spec, **settings)
    except InvalidSpec as refused:
        return _list(request, asked, 422, faults=[f"{each.pointer}: {each.detail}" for each in refused.errors])
    except (Unreadable, service.ScheduleRefused) as refused:
        return _list(request, asked, 422, faults=[str(refused)])
    return redirect(f"/schedules/{row.pk}")


@login_required
@require_safe
def one(request: HttpRequest, number: int) -> HttpResponse:
    row, user = _found(request, number), reader(request)
    detail = schedules.detail(row, user)
    return page(
        request,
        "schedule.html",
        {
            "schedule": detail.schedule,
            "times": detail.times,
            "runs": detail.runs,
            "file": to_yaml(detail.job),
            "may_act": may_end(user, owner_id=row.user_id, project_id=row.project_id),
            "overlap": row.get_overlap_display(),
            "catch_up": row.get_catch_up_display(),
        },
        place="schedules",
        crumbs=[(_("Schedules"), "/schedules"), (row.name, "")],
    )


@login_required
@require_POST
def act(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    """Pauses, resumes, runs or deletes a schedule."""
    row = _found(request, number)
    if not may_end(reader(request), owner_id=row.user_id, project_id=row.project_id):
        raise PermissionDenied
    if verb == "delete":
        service.delete(row)
        return redirect("/schedules")
    if verb == "run":
        service.run_now(row, timezone.now())
    else:
        try:
            service.change(row, timezone.now(), is_paused=verb == "pause")
        except (InvalidSpec, service.ScheduleRefused) as refused:
            return _list(request, {"file": SAMPLE, "zone": "UTC"}, 422, faults=[str(refused)])
    return redirect(f"/schedules/{row.pk}")


def _found(request: HttpRequest, number: int) -> Schedule:
    row = schedules.visible(reader(request)).filter(pk=number).first()
    if row is None:
        raise Unseen(_("schedule {name}").format(name=number))
    return row
