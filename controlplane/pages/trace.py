"""The form on a job's page that asks for a profile of a running stage."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.jobs import profiling, traces
from controlplane.jobs.refusal import of_others
from controlplane.pages.job import tab_page
from controlplane.pages.shell import reader
from controlplane.queries import jobs

MOST_DIGITS = 6


@login_required
@require_POST
def ask(request: HttpRequest, number: int) -> HttpResponse:
    """Asks for a profile, and shows the tab again: with it, or with why there is none."""
    row = jobs.visible(reader(request)).select_related("project", "user").filter(number=number).first()
    if row is None:
        raise Http404(_("There is no job #{number}, or you may not see it.").format(number=number))
    tool, seconds = request.POST.get("tool", ""), _whole(request.POST.get("seconds", ""))
    stage, rank = request.POST.get("stage", "")[:63], _whole(request.POST.get("rank", "0"))
    said = _("only {user}, a lead of project {project} or staff may profile this job")
    if refused := of_others(reader(request), row, said):
        return tab_page(request, number, "profile", refused.status, fault=refused.detail)
    if tool not in profiling.TOOLS or rank is None or seconds is None or not 1 <= seconds <= traces.LONGEST_S:
        fault = _("name one of the tools, a rank, and 1 to {most} seconds").format(most=traces.LONGEST_S)
        return tab_page(request, number, "profile", 400, fault=fault)
    try:
        traces.ask(row, reader(request), tool, seconds, stage=stage, rank=rank)
    except traces.NotTraced as error:
        return tab_page(request, number, "profile", error.status, fault=str(error))
    return redirect(f"/jobs/{number}/profile")


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= MOST_DIGITS else None
