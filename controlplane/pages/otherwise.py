"""The part of a job's page with counterfactuals; loaded after the page, because each is verified by a planning
cycle."""

from __future__ import annotations

import json

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from controlplane.pages.decisions import stage_of
from controlplane.pages.shell import reader
from controlplane.queries import counterfactuals, jobs
from controlplane.queries.reading import API, redacted
from controlplane.queries.words import change_text

LONGEST_REASON = 300


@login_required
def show(request: HttpRequest, number: int) -> HttpResponse:
    user = reader(request)
    body = redacted(user, counterfactuals.of_job(jobs.found(user, str(number)), user))
    wanted = request.GET.get("stage", "")
    stage = next((one for one in body["stages"] if one["id"] == wanted), None)
    for answer in stage["answers"] if stage else ():
        for key in ("preempts", "instead_of"):
            answer[key] = [stage_of(label)["text"] for label in answer[key]]
        answer["fields"] = [(key, json.dumps(value)) for key, value in (answer["patch"] or {}).items()]
        changes = ", ".join(change_text(one) for one in answer["changes"])
        answer["reason"] = _("tried on the job's page: {changes}").format(changes=changes)[:LONGEST_REASON]
    shown = {"stage": stage, "found": body, "api": f"{API}/jobs/{number}"}
    response = render(request, "parts/otherwise.html", shown)
    response["Cache-Control"] = "no-store"
    return response
