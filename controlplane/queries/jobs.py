"""The jobs that a user may see, and the details of one: its file, and why it waits."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import django_filters
import msgspec
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs import masked
from controlplane.jobs import models as rows
from controlplane.jobs.reasons import reason_text
from controlplane.queries import job_rows
from controlplane.queries.clauses import Clause
from controlplane.queries.filters import SubmittedFilterSet
from controlplane.queries.job_rows import Job, WaitReason
from controlplane.queries.reading import Representation, listed, seen
from controlplane.queries.refusals import Unanswerable, Unseen
from controlplane.queries.words import funnel_text, told_text
from controlplane.whatif.dry_run import dry_run
from scheduler.core.model.lifecycle import FINAL, WAITING, State

SORTS = {"submitted_at": "number", "-submitted_at": "-number", "number": "number", "-number": "-number"}


class ResolvedDemand(msgspec.Struct, frozen=True):
    """The resolved demand of one stage: alternatives with their devices, commands and environment, and its limits."""

    stage: str
    request: dict[str, Any]


class SubmittedSpec(msgspec.Struct, frozen=True):
    """A job file and its resolved form."""

    number: int
    spec: dict[str, Any]
    stages: list[ResolvedDemand]


class WaitingStage(msgspec.Struct, frozen=True):
    """Why one stage waits."""

    stage: str
    state: State
    reasons: list[WaitReason]
    funnel: list[tuple[str, int]]
    funnel_said: list[Clause]
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
    """The job with this id or number, or the element of an array as ``42_7``, if this user may see it; raises 404
    otherwise."""
    query = Q(number=int(name)) if re.fullmatch(r"[0-9]{1,18}", name) else None
    if element := re.fullmatch(r"([0-9]{1,18})_([0-9]{1,9})", name):
        query = Q(array=int(element[1]), array_index=int(element[2]))
    try:
        query = query or Q(id=uuid.UUID(name))
    except ValueError:
        raise Unseen(_("job {name}").format(name=name[:40])) from None
    job = job_rows.whole(visible(user).filter(query)).first()
    if job is None:
        raise Unseen(_("job {name}").format(name=name[:40]))
    return job


def shown(jobs: Iterable[rows.Job], user: User | None = None) -> list[Job]:
    """These jobs, which the user may see, with all their stages."""
    return job_rows.shown(jobs)


def order_of(params: Mapping[str, str]) -> str:
    """The requested order: numbers are unique and given in the order of submission."""
    order = SORTS.get(params.get("sort") or "-submitted_at")
    if order is None:
        raise Unanswerable(_("sort must be -submitted_at (newest first) or submitted_at"))
    return order


class JobFilter(SubmittedFilterSet):
    """Filters of jobs."""

    number = django_filters.CharFilter(method="numbered", help_text="Numbers of jobs, separated by commas.")
    state = django_filters.CharFilter(
        method="in_states", help_text="States, separated by commas; or active, waiting, ended."
    )
    project = django_filters.CharFilter("project__name", help_text="Name of a project.")
    pool = django_filters.CharFilter("pool__name", help_text="Name of a pool.")
    user = django_filters.CharFilter(method="of_user", help_text="Name of a user, or me.")
    array = django_filters.CharFilter(
        method="of_array", help_text="Number of an array, or none: no elements of arrays."
    )
    q = django_filters.CharFilter(method="like", help_text="A job's number, or a part of its name.")
    label = django_filters.CharFilter(method="with_label", help_text="name or name=value.")
    sort = django_filters.CharFilter(method="in_order", help_text="-submitted_at (newest first) or submitted_at.")

    def numbered(self, jobs: QuerySet[rows.Job], name: str, value: str) -> QuerySet[rows.Job]:
        if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18}){0,499}", value):
            raise Unanswerable(_("number must be numbers of jobs, at most 500, separated by commas"))
        return jobs.filter(number__in=[int(word) for word in value.split(",")])

    def in_states(self, jobs: QuerySet[rows.Job], name: str, value: str) -> QuerySet[rows.Job]:
        return jobs.filter(state__in=states_named(value))

    def of_user(self, jobs: QuerySet[rows.Job], name: str, value: str) -> QuerySet[rows.Job]:
        return jobs.filter(user=self.user) if value == "me" else jobs.filter(user__username=value)

    def of_array(self, jobs: QuerySet[rows.Job], name: str, value: str) -> QuerySet[rows.Job]:
        if value == "none":
            return jobs.filter(array=None)
        if not re.fullmatch(r"[0-9]{1,18}", value):
            raise Unanswerable(_("array must be the number of an array, or none"))
        return jobs.filter(array=int(value))

    def like(self, jobs: QuerySet[rows.Job], name: str, value: str) -> QuerySet[rows.Job]:
        word = value.strip().lstrip("#")
        if re.fullmatch(r"[0-9]{1,18}", word):
            return jobs.filter(Q(name__icontains=value.strip()) | Q(number=int(word)))
        return jobs.filter(name__icontains=word)

    def with_label(self, jobs: QuerySet[rows.Job], name: str, value: str) -> QuerySet[rows.Job]:
        return jobs.filter(labelled(value))

    def in_order(self, jobs: QuerySet[rows.Job], name: str, value: str) -> QuerySet[rows.Job]:
        return jobs  # pages are made in the order of ``order_of``


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the jobs that ``params`` ask for."""
    chosen = JobFilter(params, job_rows.whole(visible(user)), user=user)
    return listed(user, "/jobs", params, chosen, order_of(params), shown)


def one(user: User, job: rows.Job) -> Representation:
    """This job, which the user may see."""
    return seen(user, f"/jobs/{job.number}", shown([job])[0])


def spec(job: rows.Job) -> SubmittedSpec:
    """The file of this job and the demand of its stages; values of secrets are masked."""
    stages = job.stages.order_by("index").values_list("name", "request")
    resolved = [ResolvedDemand(name, masked.shown(request)) for name, request in stages]
    # Of an array the elements' files leave out what all have in common.
    whole = {**job.spec, "array": job.array.asked} if job.array else job.spec
    return SubmittedSpec(job.number, masked.shown(whole), resolved)


def why(row: rows.Job) -> JobWhy:
    """Why the stages of this job wait."""
    (job,) = job_rows.shown([row])
    waiting = [
        WaitingStage(
            stage=stage.name,
            state=stage.state,
            reasons=stage.reasons,
            funnel=stage.funnel,
            funnel_said=stage.funnel_said,
            expected_start=stage.expected_start,
            expected_s=stage.expected_s,
            planned=stage.planned,
            evaluated_at=stage.evaluated_at,
        )
        for stage in job.stages
        if stage.state in WAITING
    ]
    return JobWhy(job.number, job.state, job.reason, waiting)


def tried(spec: dict[str, Any], user: User) -> dict[str, Any]:
    """Dry-run a job file: where and when each stage would run, or why it would wait, in the reader's language."""
    found = dry_run(spec, user)
    for stage in found.get("stages", ()):
        stage["why"] = told_text(stage, "why")
        for forecast in ("expected_start", "expected_s", "memory", "device_memory"):
            if estimate := stage[forecast]:
                estimate["basis"] = told_text(estimate, "basis")
        stage["funnel"] = funnel_text(stage)
        for reason in stage["reasons"]:
            reason["text"] = reason_text(reason)
    return found


def labelled(value: str) -> Q:
    """The condition under which a job has the label ``name``, or ``name=value``."""
    label, equals, text = value.partition("=")
    return Q(labels__contains={label: text}) if equals else Q(labels__has_key=label)


def states_named(words: str) -> set[str]:
    """The states that a filter names; raises :class:`Unanswerable` for an unknown one."""
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
            raise Unanswerable(detail)
        states |= groups.get(word, {word})
    return states
