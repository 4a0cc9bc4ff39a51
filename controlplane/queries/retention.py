"""Retention: how long records of a project are kept, and what would be removed now."""

from __future__ import annotations

from datetime import datetime

import msgspec
from django.conf import settings

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.retention import rules, sweep
from controlplane.retention.kinds import KINDS
from controlplane.retention.models import Override


class RetentionDue(msgspec.Struct, frozen=True):
    """What would go now of one kind, of a project where the kind has projects. ``days`` says how long it is kept, null
    for ever. ``at_least`` tells that there is more than was counted."""

    kind: str
    project: str | None
    days: int | None
    rows: int
    size_bytes: int
    oldest: datetime | None
    at_least: bool


class RetentionDueList(msgspec.Struct, frozen=True):
    """What would go now, by kind and project."""

    results: list[RetentionDue]


class RetentionRule(msgspec.Struct, frozen=True):
    """How long one kind of a project's records is kept: ``days``, null for ever, of which the project's own choice is
    ``own_days``; it may choose no fewer than ``least_days``. ``log_bytes`` is how many bytes it may have of logs."""

    kind: str
    days: int | None
    own_days: int | None
    least_days: int
    log_bytes: int | None


class ProjectRetention(msgspec.Struct, frozen=True):
    """How long a project's records are kept."""

    project: str
    rules: list[RetentionRule]


def due(user: User) -> RetentionDueList:
    """What would go now of this user's projects; with the permission to see retention, of all and of the cluster."""
    if permissions.may(user, Permit.SEE_RETENTION):
        found = sweep.preview()
    else:
        found = [each for project in permissions.visible_projects(user) for each in sweep.preview(project)]
    return RetentionDueList([_due(each) for each in found])


def _due(one: sweep.Due) -> RetentionDue:
    return RetentionDue(
        kind=one.kind.name,
        project=one.project.name if one.project else None,
        days=one.rule.days or None,
        rows=one.went.rows,
        size_bytes=one.went.size_bytes,
        oldest=one.went.oldest,
        at_least=one.is_cut,
    )


def of_project(project: Project) -> ProjectRetention:
    """The rules that hold for this project, and what it chose itself."""
    own = {row.kind: row for row in Override.objects.filter(project=project)}
    told = []
    for kind in (kind for kind in KINDS if kind.has_projects):
        rule, chosen = rules.rule_of(kind, project), own.get(kind.name)
        told.append(
            RetentionRule(
                kind=kind.name,
                days=rule.days or None,
                own_days=chosen.days if chosen else None,
                least_days=settings.RETENTION_LEAST_DAYS[kind.name],
                log_bytes=(rule.log_bytes or None) if kind.name == "logs" else None,
            )
        )
    return ProjectRetention(project.name, told)
