"""Retention: how long records of a project are kept, and which would be removed now."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from django.conf import settings
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.retention import rules, sweep
from controlplane.retention.kinds import KINDS
from controlplane.retention.models import Override

# Of each kind and project a page counts so many records, because it is not to take long.
MOST_SHOWN: Final = 1_000


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
    return RetentionDueList([_due(each) for each in _found(user, sweep.MOST_COUNTED)])


def _found(user: User, most: int) -> list[sweep.Due]:
    if permissions.may(user, Permit.SEE_RETENTION):
        return sweep.preview(most_counted=most)
    projects = permissions.visible_projects(user).order_by("name")
    return [each for project in projects for each in sweep.preview(project, most_counted=most)]


class Next(msgspec.Struct, frozen=True):
    """Records that would be removed now; ``at_least`` tells that counting stopped before the end."""

    rows: int
    size_bytes: int
    oldest: datetime | None
    at_least: bool


class KindKept(msgspec.Struct, frozen=True):
    """One kind of records: for how many ``days`` the cluster keeps it, null for ever, and what of it would be removed
    now. Projects may choose at least ``least_days``, null if they have no choice. ``next`` is null for measurements,
    which go by whole days."""

    kind: str
    title: str
    days: int | None
    least_days: int | None
    next: Next | None


class ProjectKept(msgspec.Struct, frozen=True):
    """How long a project's records are kept, and which would be removed now. ``own_log_bytes`` is its own limit."""

    project: str
    rules: list[RetentionRule]
    own_log_bytes: int | None
    next: Next


class Kept(msgspec.Struct, frozen=True):
    """Retention of all kinds, or with fewer permissions of those that projects have, and of this user's projects."""

    kinds: list[KindKept]
    projects: list[ProjectKept]


def overview(user: User) -> Kept:
    """What this user may see of retention; it counts at most ``MOST_SHOWN`` records of a kind and project."""
    found = _found(user, MOST_SHOWN)
    kinds = []
    for kind in KINDS:
        due = [each for each in found if each.kind is kind]
        if due or kind.has_projects:
            least = settings.RETENTION_LEAST_DAYS[kind.name] if kind.has_projects else None
            kinds.append(KindKept(kind.name, str(kind.title), _days(kind.name), least, _next(due)))
    if permissions.may(user, Permit.SEE_RETENTION):
        kinds.append(KindKept("samples", _("Measurements"), _days("samples"), None, None))
    limits = dict(Override.objects.filter(kind="logs").values_list("project", "log_bytes"))
    projects = {each.project: None for each in found if each.project}
    return Kept(
        kinds,
        [
            ProjectKept(
                project.name,
                of_project(project).rules,
                limits.get(project.pk),
                _next([each for each in found if each.project == project]),
            )
            for project in projects
        ],
    )


def _days(kind: str) -> int | None:
    return settings.RETENTION_DAYS[kind] or None


def _next(found: list[sweep.Due]) -> Next:
    ages = [each.went.oldest for each in found if each.went.oldest]
    return Next(
        rows=sum(each.went.rows for each in found),
        size_bytes=sum(each.went.size_bytes for each in found),
        oldest=min(ages, default=None),
        at_least=any(each.is_cut for each in found),
    )


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
