"""Retention: how long records of a project are kept, and which would be removed now."""

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
    """Records of one kind that would be removed now, by project if the kind has projects. ``days`` is how long the kind
    is kept, null for ever. ``at_least`` tells that counting stopped before the end."""

    kind: str
    project: str | None
    days: int | None
    rows: int
    size_bytes: int
    oldest: datetime | None
    at_least: bool


class RetentionDueList(msgspec.Struct, frozen=True):
    """Records that would be removed now, by kind and project."""

    results: list[RetentionDue]


class RetentionRule(msgspec.Struct, frozen=True):
    """How long one kind of a project's records is kept: ``days``, null for ever; ``own_days`` is the project's own
    choice, at least ``least_days``. ``log_bytes`` is the most bytes of logs."""

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
    """Records of this user's projects that would be removed now; with the permission to see retention, of all projects
    and the cluster."""
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
    """The retention rules of this project, and its own choices."""
    own = {row.kind: row for row in Override.objects.filter(project=project)}
    found = []
    for kind in (kind for kind in KINDS if kind.has_projects):
        rule, chosen = rules.rule_of(kind, project), own.get(kind.name)
        found.append(
            RetentionRule(
                kind=kind.name,
                days=rule.days or None,
                own_days=chosen.days if chosen else None,
                least_days=settings.RETENTION_LEAST_DAYS[kind.name],
                log_bytes=(rule.log_bytes or None) if kind.name == "logs" else None,
            )
        )
    return ProjectRetention(project.name, found)
