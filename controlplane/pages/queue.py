"""The queue: waiting jobs in their order, why each waits, and what would let it start."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import Max
from django.http import HttpRequest, HttpResponse

from controlplane.accounts import permissions
from controlplane.accounts.permissions import Permit
from controlplane.jobs.models import Job
from controlplane.pages.progress import WAITING, explained, main_stage
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import queue
from controlplane.queries.priority_classes import priority_classes
from controlplane.queries.reading import API, Representation, redacted
from scheduler.core.model.lifecycle import WAITING as WAITING_STATES

PER_PAGE = 50
# Of a job with more waiting stages its own page shows the others.
MOST_STAGES = 3
MOST_PRIORITY = 10_000


def _entry(job: dict[str, Any], place: int | None) -> dict[str, Any]:
    """A job with its place in the queue of its pool, and the waiting stages whose reasons are shown."""
    waiting = [stage for stage in job["stages"] if stage["state"] in WAITING]
    told = explained(job)
    return {
        **job,
        "place": place,
        "main": main_stage(job),
        "first": next(iter(told or waiting), None),
        "told": told[:MOST_STAGES],
        "since": min((stage["eligible_at"] for stage in waiting if stage["eligible_at"]), default=job["submitted_at"]),
    }


def _ahead(pool: str) -> int:
    """The least priority that is ahead of all jobs that wait in this pool, or in any; 0 if there is none such."""
    waiting = Job.objects.filter(state__in=WAITING_STATES, **({"pool__name": pool} if pool else {}))
    most = (waiting.aggregate(most=Max("priority"))["most"] or 0) + 1
    return most if most <= MOST_PRIORITY else 0


@login_required
def show(request: HttpRequest) -> HttpResponse:
    user, pool = reader(request), request.GET.get("pool", "")
    counts = queue.by_pool(user)
    shown = Paginator(range(queue.total(counts, pool)), PER_PAGE).get_page(request.GET.get("page"))
    jobs = redacted(user, queue.queued(user, pool, (shown.number - 1) * PER_PAGE, PER_PAGE))
    watched = {"state": "waiting", **({"pool": pool} if pool else {})}
    return page(
        request,
        "queue.html",
        {
            "jobs": [_entry(one["job"], one["place"]) for one in jobs],
            "shown": shown,
            "pool": pool,
            "pools": [(name, counts.get(name, 0)) for name in sorted({*counts, *([pool] if pool else [])})],
            "total": sum(counts.values()),
            "classes": [each.name for each in priority_classes()],
            "ahead": _ahead(pool) if permissions.may(user, Permit.USE_ANY_PRIORITY) else 0,
        },
        place="queue",
        topics=[Representation(f"{API}/jobs?{urlencode(watched)}", "", None)],
        every_s=5,
        crumbs=[(title_of("queue"), "")],
    )
