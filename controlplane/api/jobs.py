"""Jobs: submit, list, look at, and end them."""

from __future__ import annotations

import re
import uuid
from typing import Any, cast

import msgspec
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext, gettext_noop
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.api import job_rows
from controlplane.api.action import Why, action
from controlplane.api.body import LARGEST_BATCH, BoundedJSON, BoundedYAML, check_bounds
from controlplane.api.idempotency import idempotent
from controlplane.api.job_rows import Job, WaitReason
from controlplane.api.page import PAGE_DESCRIBED, PageQuery, page_of
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, asked, parameters, signed_in, taken
from controlplane.jobs import masked, service
from controlplane.jobs import models as rows
from controlplane.jobs import spec as jobfile
from controlplane.jobs.section import FieldError
from scheduler.core.model.lifecycle import FINAL, WAITING, State

MOST_AT_ONCE = 10_000
KEY = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER, description="The same key takes effect once within a day."
)


class JobPage(msgspec.Struct, frozen=True):
    """One page of jobs, newest first unless asked otherwise."""

    results: list[Job]
    next: str | None
    previous: str | None


class JobQuery(PageQuery, frozen=True):
    """What a list of jobs may be narrowed by."""

    state: str = ""
    project: str = ""
    pool: str = ""
    user: str = ""
    q: str = ""
    label: str = ""
    sort: str = "-submitted_at"


DESCRIBED = {
    "state": "States, separated by commas; or active, waiting, ended.",
    "project": "Name of a project.",
    "pool": "Name of a pool.",
    "user": "Name of a user, or me.",
    "q": "A job's number, or a part of its name.",
    "label": "name or name=value.",
    "sort": "-submitted_at (newest first) or submitted_at.",
    **PAGE_DESCRIBED,
}


class Accepted(msgspec.Struct, frozen=True):
    """One accepted job of a batch."""

    id: uuid.UUID
    number: int


class AcceptedBatch(msgspec.Struct, frozen=True):
    """The accepted jobs, in the order in which they were sent."""

    results: list[Accepted]


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Job files that are accepted all together, or not at all."""

    jobs: list[Any]


class ResolvedDemand(msgspec.Struct, frozen=True):
    """What one stage asks for: alternatives with their devices, commands and environment, and its limits."""

    stage: str
    request: dict[str, Any]


class SubmittedSpec(msgspec.Struct, frozen=True):
    """A job file and how it was understood."""

    number: int
    spec: dict[str, Any]
    stages: list[ResolvedDemand]


class WaitingStage(msgspec.Struct, frozen=True):
    """Why one stage waits."""

    stage: str
    state: State
    reasons: list[WaitReason]
    funnel: list[tuple[str, int]]
    expected_start: job_rows.ExpectedStart | None
    expected_s: job_rows.RunTime | None
    planned: job_rows.Planned | None
    evaluated_at: Any


class JobWhy(msgspec.Struct, frozen=True):
    """Why a job waits: one entry per waiting stage."""

    number: int
    state: State
    reason: WaitReason | None
    stages: list[WaitingStage]


def visible(user: User) -> QuerySet[rows.Job]:
    """The jobs that this user may see."""
    return rows.Job.objects.filter(permissions.visible_jobs(user))


def found(user: User, name: str) -> rows.Job:
    """The job with this id or number, if this user may see it; raises 404 otherwise."""
    query = Q(number=int(name)) if re.fullmatch(r"[0-9]{1,18}", name) else None
    try:
        query = query or Q(id=uuid.UUID(name))
    except ValueError:
        raise not_found(_("job {name}").format(name=name[:40])) from None
    job = job_rows.whole(visible(user).filter(query)).first()
    if job is None:
        raise not_found(_("job {name}").format(name=name[:40]))
    return job


class Jobs(Resource):
    """The list of jobs, and where new ones come in."""

    parser_classes = [BoundedJSON, BoundedYAML]

    @extend_schema(
        operation_id="jobs_list", responses={200: JobPage, 400: Problem}, parameters=parameters(JobQuery, DESCRIBED)
    )
    def get(self, request: Request) -> Response:
        """The jobs that you may see, newest first."""
        query, user = asked(request, JobQuery), signed_in(request)
        chosen = narrowed(visible(user), query, user)
        if query.sort not in {"submitted_at", "-submitted_at", "number", "-number"}:
            raise Refused(400, "invalid", _("sort must be -submitted_at (newest first) or submitted_at"))
        # Numbers are given in the order of submission, and no two jobs share one.
        page, links = page_of(
            job_rows.whole(chosen), request, "number", limit=query.limit, descending=query.sort.startswith("-")
        )
        return Response(JobPage(job_rows.shown(page), **links))

    @extend_schema(
        operation_id="jobs_submit",
        request={"application/json": OpenApiTypes.OBJECT, "application/yaml": OpenApiTypes.STR},
        responses={201: Job, 200: OpenApiTypes.OBJECT, 422: Problem},
        parameters=[
            KEY,
            OpenApiParameter(
                "dry_run", str, enum=["validate", "placement"], description="Submit nothing; say what would be."
            ),
        ],
        examples=[OpenApiExample("One stage", {"name": "hello", "run": "echo hello"}, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        """Submits a job file, as JSON or YAML."""
        dry_run, spec = request.query_params.get("dry_run", ""), cast("dict[str, Any]", request.data)
        check_bounds(spec)
        if dry_run == "validate":
            resolved = jobfile.resolve_all([spec], signed_in(request))[0]
            return Response(
                {**resolved.plain(), "warnings": [{"pointer": p, "detail": d} for p, d in resolved.warnings]}
            )
        if dry_run == "placement":
            from controlplane.whatif.dry_run import dry_run as placed

            return Response(placed(spec, signed_in(request)))
        if dry_run:
            raise Refused(400, "invalid", _("dry_run must be validate or placement"))
        return self.submit(request)

    @idempotent
    def submit(self, request: Request) -> Response:
        """Accepts the job of this request once per key."""
        job = service.submit(cast("dict[str, Any]", request.data), signed_in(request))
        (shown,) = job_rows.shown([job])
        return Response(shown, status=201, headers={"Location": f"/api/v1/jobs/{job.number}"})


def narrowed(jobs: QuerySet[rows.Job], query: JobQuery, user: User) -> QuerySet[rows.Job]:
    """The jobs that the query asks for."""
    if query.state:
        jobs = jobs.filter(state__in=_states(query.state))
    if query.project:
        jobs = jobs.filter(project__name=query.project)
    if query.pool:
        jobs = jobs.filter(pool__name=query.pool)
    if query.user:
        jobs = jobs.filter(user=user) if query.user == "me" else jobs.filter(user__username=query.user)
    if query.q:
        word = query.q.strip().lstrip("#")
        by_number = Q(number=int(word)) if re.fullmatch(r"[0-9]{1,18}", word) else Q()
        jobs = (
            jobs.filter(Q(name__icontains=query.q.strip()) | by_number)
            if by_number
            else jobs.filter(name__icontains=word)
        )
    if query.label:
        name, equals, value = query.label.partition("=")
        jobs = jobs.filter(labels__contains={name: value}) if equals else jobs.filter(labels__has_key=name)
    return jobs


def _states(words: str) -> set[str]:
    groups: dict[str, set[str]] = {
        "WAITING": set(WAITING),
        "ENDED": set(FINAL),
        "ACTIVE": {str(state) for state in State} - FINAL,
        "CANCELED": {State.CANCELLED},
    }
    states: set[str] = set()
    for word in words.upper().split(","):
        if word not in groups and word not in set(State):
            detail = _("state must be some of {states}, or active, waiting, ended").format(states=", ".join(State))
            raise Refused(400, "invalid", detail)
        states |= groups.get(word, {word})
    return states


class JobBatch(Resource):
    """Many jobs at once."""

    largest_body = LARGEST_BATCH

    @extend_schema(
        operation_id="jobs_submit_batch", request=Batch, responses={201: AcceptedBatch, 422: Problem}, parameters=[KEY]
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Submits up to 10,000 job files: all of them, or none where one has a fault."""
        batch = taken(request, Batch)
        if not 1 <= len(batch.jobs) <= MOST_AT_ONCE:
            detail = _("jobs must hold 1 to {most:,} job files, not {count:,}")
            raise Refused(422, "invalid", detail.format(most=MOST_AT_ONCE, count=len(batch.jobs)))
        for each in batch.jobs:
            check_bounds(each)
        jobs = service.submit_many(batch.jobs, signed_in(request))
        return Response(AcceptedBatch([Accepted(job.id, job.number) for job in jobs]), status=201)


class OneJob(Resource):
    """One job."""

    @extend_schema(operation_id="jobs_get", responses={200: Job, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """A job with its stages, by number or id."""
        (shown,) = job_rows.shown([found(signed_in(request), name)])
        return Response(shown)


class JobAction(Resource):
    """Cancel, hold or release a job."""

    action = ""

    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Acts on the job and answers with how it stands then."""
        user, why = signed_in(request), taken(request, Why)
        job = found(user, name)
        if not permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id):
            detail = gettext(_MAY_NOT[self.action]).format(user=job.user.get_username(), project=job.project.name)
            raise Refused(403, "permission_denied", detail)
        if len(why.reason) > 500:
            fault = FieldError("/reason", _("must have at most 500 characters"), "too_long")
            raise Refused(422, "too_long", _("reason must have at most 500 characters"), errors=[fault])
        act = {"cancel": service.cancel, "hold": service.hold, "release": service.release}[self.action]
        with transaction.atomic():
            act(job, user.get_username(), why.reason.strip())
        (shown,) = job_rows.shown([found(user, str(job.number))])
        return Response(shown)


_MAY_NOT = {
    "cancel": gettext_noop("only {user}, a lead of project {project} or staff may cancel this job"),
    "hold": gettext_noop("only {user}, a lead of project {project} or staff may hold this job"),
    "release": gettext_noop("only {user}, a lead of project {project} or staff may release this job"),
}


JobCancel = action(JobAction, "job", "cancel", Job, "Ends the job for good; doing it twice is the same as once.", [KEY])
JobHold = action(JobAction, "job", "hold", Job, "Keeps the waiting stages of the job from starting.", [KEY])
JobRelease = action(JobAction, "job", "release", Job, "Lets held stages start again.", [KEY])


class JobSpec(Resource):
    """What was asked for, as it was sent and as it was understood."""

    @extend_schema(operation_id="jobs_spec", responses={200: SubmittedSpec, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """The job file as it was submitted, and the resolved demand of each stage. Values of secrets are masked."""
        job = found(signed_in(request), name)
        stages = job.stages.order_by("index").values_list("name", "request")
        resolved = [ResolvedDemand(name, masked.shown(request)) for name, request in stages]
        return Response(SubmittedSpec(job.number, masked.shown(job.spec), resolved))


class JobReasons(Resource):
    """Why a job waits."""

    @extend_schema(operation_id="jobs_why", responses={200: JobWhy, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """Why the stages of this job wait, with numbers, and when they will probably start."""
        (job,) = job_rows.shown([found(signed_in(request), name)])
        waiting = [
            WaitingStage(
                s.name, s.state, s.reasons, s.funnel, s.expected_start, s.expected_s, s.planned, s.evaluated_at
            )
            for s in job.stages
            if s.state in WAITING
        ]
        return Response(JobWhy(job.number, job.state, job.reason, waiting))
