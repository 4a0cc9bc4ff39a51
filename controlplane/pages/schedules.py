"""Schedules: a list with the next and the last time of each, a page for each, and a form for a new one."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from controlplane import cron
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
        return _list(request, asked, 422, faults=_faults(refused))
    except Unreadable as refused:
        return _list(request, asked, 422, faults={"file": str(refused)})
    except service.ScheduleRefused as refused:
        return _list(request, asked, refused.status, faults=_faults(refused))
    return redirect(f"/schedules/{row.pk}")


def _faults(refused: InvalidSpec | service.ScheduleRefused) -> dict[str, str]:
    """What is wrong, by the field of the form."""
    found: dict[str, str] = {}
    for each in refused.errors:
        first, _slash, rest = each.pointer.removeprefix("/").partition("/")
        field = "file" if first == "job" else first if first in FIELDS else "form"
        said = f"/{rest}: {each.detail}" if rest else each.detail
        found[field] = f"{found[field]}; {said}" if field in found else said
    return found or {"form": str(refused)}


@login_required
@require_safe
def times(request: HttpRequest) -> JsonResponse:
    """The next five times of a cron line, told in its zone, or what is wrong with it."""
    line, zone = request.GET.get("cron", "")[:101], request.GET.get("zone", "")[:64]
    try:
        cron.check(line, zone)
        found = list(islice(cron.times(line, zone, timezone.now()), schedules.NEXT))
    except cron.CronFault as fault:
        field = "zone" if zone not in cron.zones() else "cron"
        return JsonResponse({"times": [], "field": field, "fault": str(fault)})
    own = ZoneInfo(zone)
    return JsonResponse(
        {"times": [f"{at.astimezone(own):%Y-%m-%d %H:%M %Z}" for at in found], "field": "", "fault": ""}
    )


@login_required
@require_POST
def change(request: HttpRequest, number: int) -> HttpResponse:
    """Changes a schedule as it was shown; one that was changed since is shown again, with what was typed."""
    row, user = _found(request, number), reader(request)
    if not may_end(user, owner_id=row.user_id, project_id=row.project_id):
        raise PermissionDenied
    asked = {name: request.POST.get(name, "") for name in FIELDS[1:]}
    settings: dict[str, Any] = {name: asked[name].strip() for name in ("cron", "zone", "overlap", "catch_up")}
    try:
        if row.user_id == user.pk:
            settings["job"] = job_file(asked["file"].encode())
        with transaction.atomic():
            locked = Schedule.objects.select_for_update().get(pk=row.pk)
            if request.POST.get("version") != _version(locked):
                said = _("somebody changed this schedule meanwhile; look at it, and save again")
                raise service.ScheduleRefused("changed_meanwhile", said, "", 409)
            service.change(user, locked, timezone.now(), **settings)
    except InvalidSpec as refused:
        return _one(request, row, 422, asked=asked, faults=_faults(refused))
    except Unreadable as refused:
        return _one(request, row, 422, asked=asked, faults={"file": str(refused)})
    except service.ScheduleRefused as refused:
        return _one(request, _found(request, number), refused.status, asked=asked, faults=_faults(refused))
    return redirect(f"/schedules/{row.pk}")


def _version(row: Schedule) -> str:
    """What says that a form shows the settings that the schedule has."""
    told = [row.cron, row.zone, row.overlap, row.catch_up, str(row.is_paused), json.dumps(row.job, sort_keys=True)]
    return salted_hmac("schedule", "\0".join(told), algorithm="sha256").hexdigest()


@login_required
@require_safe
def one(request: HttpRequest, number: int) -> HttpResponse:
    return _one(request, _found(request, number))


def _one(request: HttpRequest, row: Schedule, status: int = 200, **more: Any) -> HttpResponse:
    user = reader(request)
    row = _found(request, row.pk)  # a change that was refused may have set some of its fields
    detail = schedules.detail(row, user)
    settings = {name: getattr(row, name) for name in ("cron", "zone", "overlap", "catch_up")}
    return page(
        request,
        "schedule.html",
        {
            "schedule": detail.schedule,
            "times": detail.times,
            "runs": detail.runs,
            "file": to_yaml(detail.job),
            "may_act": may_end(user, owner_id=row.user_id, project_id=row.project_id),
            "is_mine": row.user_id == user.pk,
            "shown_version": _version(row),
            "asked": settings | {"file": to_yaml(detail.job)},
            "overlaps": Schedule.Overlap.choices,
            "catch_ups": Schedule.CatchUp.choices,
            "overlap": row.get_overlap_display(),
            "catch_up": row.get_catch_up_display(),
            **more,
        },
        place="schedules",
        crumbs=[(_("Schedules"), "/schedules"), (row.name, "")],
        status=status,
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
            service.change(reader(request), row, timezone.now(), is_paused=verb == "pause")
        except (InvalidSpec, service.ScheduleRefused) as refused:
            return _one(request, row, 422, faults={"form": str(refused)})
    return redirect(f"/schedules/{row.pk}")


def _found(request: HttpRequest, number: int) -> Schedule:
    row = schedules.visible(reader(request)).filter(pk=number).first()
    if row is None:
        raise Unseen(_("schedule {name}").format(name=number))
    return row
