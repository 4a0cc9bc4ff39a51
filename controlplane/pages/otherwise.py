"""The part of a job's page that tells what would let it start; fetched after the page, because each answer is tried."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.pages.decisions import stage_of
from controlplane.pages.shell import reader
from controlplane.queries import counterfactuals, jobs
from controlplane.queries.reading import told


@login_required
def show(request: HttpRequest, number: int) -> HttpResponse:
    user = reader(request)
    body = told(user, counterfactuals.of_job(jobs.found(user, str(number)), user))
    wanted = request.GET.get("stage", "")
    stage = next((one for one in body["stages"] if one["id"] == wanted), None)
    for answer in stage["answers"] if stage else ():
        for key in ("preempts", "instead_of"):
            answer[key] = [stage_of(label)["text"] for label in answer[key]]
    response = render(request, "parts/otherwise.html", {"stage": stage, "found": body})
    response["Cache-Control"] = "no-store"
    return response
