"""What happened to jobs, across all that the asking user may see."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.api.job_rows import Clause, clauses
from controlplane.api.page import PAGE_DESCRIBED, PageQuery, page_of
from controlplane.api.resource import Resource, asked, parameters, signed_in
from controlplane.jobs import models as rows


class Fact(msgspec.Struct, frozen=True):
    """Something that happened to a job; ``text_said`` is its text in clauses."""

    job: int
    seq: int
    at: datetime
    kind: str
    stage: str
    attempt: int | None
    actor: str
    text: str
    text_said: list[Clause]
    params: dict[str, Any]


class FactPage(msgspec.Struct, frozen=True):
    """One page of facts, newest first."""

    results: list[Fact]
    next: str | None
    previous: str | None


class FactQuery(PageQuery, frozen=True):
    """What the facts may be narrowed by."""

    kind: str = ""
    project: str = ""


DESCRIBED = {
    "kind": "Such as submitted, placed or completed.",
    "project": "Name of a project.",
    **PAGE_DESCRIBED,
}


class Facts(Resource):
    """The history of all jobs."""

    @extend_schema(operation_id="events_list", responses={200: FactPage}, parameters=parameters(FactQuery, DESCRIBED))
    def get(self, request: Request) -> Response:
        """What happened, newest first."""
        query, user = asked(request, FactQuery), signed_in(request)
        facts = _visible(user).select_related("job")
        if query.kind:
            facts = facts.filter(kind=query.kind)
        if query.project:
            facts = facts.filter(
                project__in=list(Project.objects.filter(name=query.project).values_list("pk", flat=True))
            )
        page, links = page_of(facts, request, "id", limit=query.limit, descending=True)
        found = [
            Fact(e.job.number, e.seq, e.at, e.kind, e.stage, e.attempt, e.actor, e.text, clauses(e.said), e.params)
            for e in page
        ]
        return Response(FactPage(found, **links))


def _visible(user: User) -> QuerySet[rows.Event]:
    """The events of jobs that this user may see, so asked that the index of events by project serves."""
    if permissions.may(user, Permit.SEE_JOBS):
        return rows.Event.objects.all()
    projects = permissions.joined(user)
    elsewhere = list(rows.Job.objects.filter(user=user).exclude(project__in=projects).values_list("pk", flat=True))
    in_projects = Q(project__in=projects)
    return rows.Event.objects.filter(in_projects | Q(job__in=elsewhere) if elsewhere else in_projects)
