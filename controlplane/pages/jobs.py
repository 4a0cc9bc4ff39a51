"""The list of jobs, filtered by the query string."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.pages.progress import ACTIVE, FINAL, doing, main_stage
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import arrays as array_rows
from controlplane.queries import jobs as job_rows
from controlplane.queries import projects
from controlplane.queries.reading import cursor_of

FILTERS = ("state", "project", "pool", "user", "q", "array", "sort", "cursor")
PER_PAGE = 50
# The newest arrays stand above the first page of jobs.
MOST_ARRAYS = 10


def _views() -> list[dict[str, str]]:
    """Predefined filters, as tabs."""
    return [
        {"title": _("All"), "query": ""},
        {"title": _("Mine"), "query": "user=me"},
        {"title": _("Waiting"), "query": urlencode({"state": "waiting"})},
        {"title": _("Active"), "query": urlencode({"state": ",".join(ACTIVE)})},
        {"title": _("Failed"), "query": "state=FAILED"},
    ]


def _array(one: dict[str, Any]) -> dict[str, Any]:
    """An array with its elements by state, in the order of states, and the share of those that have done their part."""
    counts = one["counts"]
    done = counts.get("COMPLETED", 0) + one["stopped_early"]
    states = [(state, counts[state]) for state in (*ACTIVE, "PENDING", "HELD", *FINAL) if state in counts]
    return {**one, "states": states, "share": done / max(1, sum(counts.values()))}


@login_required
def show(request: HttpRequest) -> HttpResponse:
    asked = {key: request.GET[key] for key in FILTERS if request.GET.get(key)}
    # An array is one line; its elements are listed where they are asked for.
    answer = job_rows.page(reader(request), {"array": "none", **asked, "limit": str(PER_PAGE)})
    of_arrays = {key: value for key, value in asked.items() if key in {"state", "project", "pool", "user", "q"}}
    is_first = not {"cursor", "array"} & asked.keys()
    arrays = array_rows.page(reader(request), {**of_arrays, "limit": str(MOST_ARRAYS)}) if is_first else None
    jobs = answer.body["results"]
    for job in jobs:
        job["doing"] = doing(job)
        job["main"] = main_stage(job)
    filters = {key: value for key, value in asked.items() if key not in {"cursor", "sort"}}
    return page(
        request,
        "jobs.html",
        {
            "jobs": jobs,
            "arrays": [_array(one) for one in arrays.body["results"]] if arrays else [],
            "asked": asked,
            "filters": filters,
            "views": [{**view, "here": urlencode(filters) == view["query"]} for view in _views()],
            "projects": projects.names(reader(request)),
            "states": ["HELD", "PENDING", *ACTIVE, *FINAL],
            "next": cursor_of(answer.body.get("next")),
            "previous": cursor_of(answer.body.get("previous")),
            "simulated": any(job.get("simulated") for job in jobs),
        },
        place="jobs",
        topics=[answer, *([arrays] if arrays else [])],
        every_s=3,
        crumbs=[(title_of("jobs"), "")],
    )
