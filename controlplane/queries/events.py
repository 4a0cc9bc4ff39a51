"""Events of jobs that the user may see."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import django_filters
import msgspec
from django.db.models import Q, QuerySet

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.jobs import models as rows
from controlplane.queries.clauses import Clause, clauses


class JobEvent(msgspec.Struct, frozen=True):
    """An event of a job; ``seq`` has no gaps within the job. ``text_said`` is its text in clauses."""

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


class JobHistory(msgspec.Struct, frozen=True):
    """One page of a job's events, oldest first by default."""

    results: list[JobEvent]
    next: str | None
    previous: str | None


def of_job(job: rows.Job) -> QuerySet[rows.Event]:
    """The events of this job."""
    return rows.Event.objects.filter(job=job).select_related("job")


def shown(events: Iterable[rows.Event], user: User) -> list[JobEvent]:
    """These events, which this user may see; their jobs must be loaded."""
    return [
        JobEvent(e.job.number, e.seq, e.at, e.kind, e.stage, e.attempt, e.actor, e.text, clauses(e.said), e.params)
        for e in events
    ]


class EventFilter(django_filters.FilterSet):
    """Filters of events."""

    kind = django_filters.CharFilter(help_text="Such as submitted, placed or completed.")
    project = django_filters.CharFilter(method="of_project", help_text="Name of a project.")

    def of_project(self, events: QuerySet[rows.Event], name: str, value: str) -> QuerySet[rows.Event]:
        # By id, so that the index of events by project serves.
        return events.filter(project__in=list(Project.objects.filter(name=value).values_list("pk", flat=True)))


def visible(user: User) -> QuerySet[rows.Event]:
    """The events of jobs that this user may see, as a query that uses the index of events by project."""
    if permissions.may(user, Permit.SEE_JOBS):
        return rows.Event.objects.all()
    projects = permissions.joined(user)
    elsewhere = list(rows.Job.objects.filter(user=user).exclude(project__in=projects).values_list("pk", flat=True))
    in_projects = Q(project__in=projects)
    return rows.Event.objects.filter(in_projects | Q(job__in=elsewhere) if elsewhere else in_projects)
