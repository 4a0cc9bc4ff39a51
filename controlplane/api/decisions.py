"""What the scheduler decided in its recent cycles, and at which price."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.access import permissions
from controlplane.access.models import User
from controlplane.api.page import page_of
from controlplane.api.resource import Resource, asked, parameters, signed_in
from controlplane.jobs import models as rows

_NUMBER = re.compile(r"#([0-9]{1,18})/")
HIDDEN = "another project's stage"


class Decision(msgspec.Struct, frozen=True):
    """One cycle that decided something. Stages of jobs that you may not see are not named."""

    id: int
    at: datetime
    profile: str
    duration_ms: float
    waiting: int
    started: list[dict[str, Any]]
    evicted: list[dict[str, Any]]
    skipped: list[str]
    replanned: str


class DecisionPage(msgspec.Struct, frozen=True):
    """One page of decisions, newest first."""

    results: list[Decision]
    next: str | None
    previous: str | None


class DecisionQuery(msgspec.Struct, frozen=True):
    """Where a page begins and how long it is."""

    limit: int | None = None
    cursor: str = ""


DESCRIBED = {"limit": "At most so many, up to 500.", "cursor": "From next or previous of an earlier answer."}


class Decisions(Resource):
    """The list of decisions."""

    @extend_schema(
        operation_id="decisions_list", responses={200: DecisionPage}, parameters=parameters(DecisionQuery, DESCRIBED)
    )
    def get(self, request: Request) -> Response:
        """The recent cycles that decided something, newest first."""
        query, user = asked(request, DecisionQuery), signed_in(request)
        page, links = page_of(rows.Decision.objects.all(), request, "id", limit=query.limit, descending=True)
        seen = _visible_numbers(page, user)
        return Response(DecisionPage([_shown(each, seen) for each in page], **links))


def _visible_numbers(page: list[rows.Decision], user: User) -> set[int] | None:
    """The numbers among those named that this user may see; None means all."""
    if permissions.is_staff(user):
        return None
    named = {int(n) for each in page for n in _NUMBER.findall(f"{each.started} {each.evicted} {each.skipped}")}
    visible = rows.Job.objects.filter(permissions.visible_jobs(user), number__in=named)
    return set(visible.values_list("number", flat=True))


def _shown(decision: rows.Decision, seen: set[int] | None) -> Decision:
    def label(value: Any) -> Any:
        match = _NUMBER.match(value) if isinstance(value, str) else None
        return value if match is None or seen is None or int(match[1]) in seen else HIDDEN

    def entry(stored: dict[str, Any]) -> dict[str, Any]:
        known = label(stored.get("stage")) != HIDDEN
        # A sentence about a stage that may not be seen would tell what it is.
        return {key: label(value) for key, value in stored.items() if known or key in {"stage", "price", "gain"}}

    return Decision(
        id=decision.pk,
        at=decision.at,
        profile=decision.profile,
        duration_ms=decision.duration_ms,
        waiting=decision.waiting,
        started=[entry(each) for each in decision.started],
        evicted=[entry(each) for each in decision.evicted],
        skipped=[label(each) for each in decision.skipped],
        replanned=decision.replanned,
    )
