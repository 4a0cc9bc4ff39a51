"""What happened to a job: its attempts, its checkpoints, and the facts noted about it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from datetime import datetime
from typing import Any

import msgspec
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.expected_end import expected_end
from controlplane.api.job_rows import Placed, placed
from controlplane.api.jobs import found
from controlplane.api.page import page_of
from controlplane.api.problem import Problem
from controlplane.api.resource import Resource, asked, parameters, signed_in
from controlplane.jobs import models as rows


class Attempt(msgspec.Struct, frozen=True):
    """One try at running a stage. ``price_device_s`` is the work lost where it was evicted.

    ``expected_end_at`` is when it will probably end while it runs; null where nobody can tell or that time has passed.
    """

    id: uuid.UUID
    stage: str
    number: int
    alternative: int
    why_here: str
    placed: list[Placed]
    created_at: datetime
    started_at: datetime | None
    stop_why: str
    stop_at: datetime | None
    contact_lost_at: datetime | None
    ended_at: datetime | None
    expected_end_at: datetime | None
    cause: str
    detail: str
    exit_code: int | None
    signal: int | None
    price_device_s: float | None


class AttemptList(msgspec.Struct, frozen=True):
    """All attempts of a job, in the order of its stages."""

    results: list[Attempt]


class Checkpoint(msgspec.Struct, frozen=True):
    """A resumable point that a stage confirmed."""

    stage: str
    attempt: int
    step: int
    path: str
    at: datetime


class CheckpointList(msgspec.Struct, frozen=True):
    """The newest checkpoints of a job, newest first."""

    results: list[Checkpoint]


class JobFact(msgspec.Struct, frozen=True):
    """Something that happened to a job; ``seq`` has no gaps within the job."""

    seq: int
    at: datetime
    kind: str
    stage: str
    attempt: int | None
    actor: str
    text: str
    params: dict[str, Any]


class JobFactPage(msgspec.Struct, frozen=True):
    """One page of a job's history, oldest first."""

    results: list[JobFact]
    next: str | None
    previous: str | None


class PageQuery(msgspec.Struct, frozen=True):
    """Where a page begins and how long it is."""

    limit: int | None = None
    cursor: str = ""


PAGE_DESCRIBED = {"limit": "At most so many, up to 500.", "cursor": "From next or previous of an earlier answer."}


class JobAttempts(Resource):
    """The attempts of a job."""

    @extend_schema(operation_id="jobs_attempts", responses={200: AttemptList, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """Every try at running the job's stages: where, how long, and how it ended."""
        job = found(signed_in(request), name)
        attempts = list(
            rows.Attempt.objects.filter(stage__job=job)
            .select_related("stage")
            .order_by("stage__index", "number")[:2000]
        )
        claims: dict[uuid.UUID, list[rows.Claim]] = defaultdict(list)
        held = rows.Claim.objects.filter(part__attempt__in=[attempt.id for attempt in attempts])
        for claim in held.select_related("part__node", "device").order_by(
            "part__rank", "device__kind", "device__index"
        ):
            claims[claim.part.attempt_id].append(claim)
        now = timezone.now()
        return Response(AttemptList([_attempt(each, claims[each.id], now) for each in attempts]))


def _attempt(attempt: rows.Attempt, claims: list[rows.Claim], now: datetime) -> Attempt:
    return Attempt(
        id=attempt.id,
        stage=attempt.stage.name,
        number=attempt.number,
        alternative=attempt.alternative,
        why_here=attempt.why_here,
        placed=placed(claims),
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        stop_why=attempt.stop_why,
        stop_at=attempt.stop_at,
        contact_lost_at=attempt.contact_lost_at,
        ended_at=attempt.ended_at,
        expected_end_at=expected_end(attempt, now),
        cause=attempt.cause,
        detail=attempt.detail,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        price_device_s=attempt.price,
    )


class JobCheckpoints(Resource):
    """The checkpoints of a job."""

    @extend_schema(operation_id="jobs_checkpoints", responses={200: CheckpointList, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """The newest 500 resumable points that the job's stages confirmed."""
        job = found(signed_in(request), name)
        points = rows.Checkpoint.objects.filter(stage__job=job).select_related("stage", "attempt").order_by("-at")
        return Response(
            CheckpointList([Checkpoint(p.stage.name, p.attempt.number, p.step, p.path, p.at) for p in points[:500]])
        )


class JobFacts(Resource):
    """The history of a job."""

    @extend_schema(
        operation_id="jobs_events",
        responses={200: JobFactPage, 404: Problem},
        parameters=parameters(PageQuery, PAGE_DESCRIBED),
    )
    def get(self, request: Request, name: str) -> Response:
        """Everything that happened to the job, oldest first."""
        query, job = asked(request, PageQuery), found(signed_in(request), name)
        page, links = page_of(rows.Event.objects.filter(job=job), request, "seq", limit=query.limit, descending=False)
        facts = [JobFact(e.seq, e.at, e.kind, e.stage, e.attempt, e.actor, e.text, e.params) for e in page]
        return Response(JobFactPage(facts, **links))
