"""How long records are kept: a project's own choice, and what would go now."""

from __future__ import annotations

from datetime import datetime

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import audit, permissions
from controlplane.accounts import models as rows
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, permitted, signed_in, taken
from controlplane.jobs.section import FieldError
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


class RetentionChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a project chooses: days by kind, null for as long as all; what is left out stays as it is. ``log_bytes`` is
    how many bytes of logs it may have, null for as many as all."""

    days: dict[str, int | None] = {}
    log_bytes: int | msgspec.UnsetType | None = msgspec.UNSET


class RetentionPreview(Resource):
    """What retention would remove now."""

    @extend_schema(operation_id="retention_preview", responses={200: RetentionDueList})
    def get(self, request: Request) -> Response:
        """Of your projects; with the permission to see retention, of all and of the cluster. Removes nothing."""
        user = signed_in(request)
        if permissions.may(user, Permit.SEE_RETENTION):
            found = sweep.preview()
        else:
            found = [due for project in permissions.visible_projects(user) for due in sweep.preview(project)]
        return Response(RetentionDueList([_due(each) for each in found]))


def _due(due: sweep.Due) -> RetentionDue:
    return RetentionDue(
        kind=due.kind.name,
        project=due.project.name if due.project else None,
        days=due.rule.days or None,
        rows=due.went.rows,
        size_bytes=due.went.size_bytes,
        oldest=due.went.oldest,
        at_least=due.is_cut,
    )


class RetentionOfProject(Resource):
    """How long a project's records are kept."""

    scope = "admin"

    @extend_schema(operation_id="projects_retention", responses={200: ProjectRetention, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """The rules that hold for a project, and what it chose itself."""
        return Response(_shown(_project(signed_in(request), name)))

    @extend_schema(
        operation_id="projects_retention_choose",
        request=RetentionChoice,
        responses={200: ProjectRetention, 403: Problem, 404: Problem, 422: Problem},
    )
    def put(self, request: Request, name: str) -> Response:
        """Chooses how long records are kept. A lead may shorten; to keep them longer than all needs the permission."""
        user = signed_in(request)
        project, choice = _project(user, name), taken(request, RetentionChoice)
        if not permissions.led(user).filter(pk=project.pk).exists():
            permitted(request, Permit.CHANGE_RETENTION, _("change how long the records of a project are kept"))
        with transaction.atomic():
            before = _chosen(project)
            for kind in sorted({*choice.days, *(["logs"] if choice.log_bytes is not msgspec.UNSET else [])}):
                self._choose(request, project, kind, choice)
            audit.record("project.retention", project, before=before, after=_chosen(project))
        return Response(_shown(project))

    @staticmethod
    def _choose(request: Request, project: rows.Project, kind: str, choice: RetentionChoice) -> None:
        row = Override.objects.filter(project=project, kind=kind[:20]).first() or Override(project=project, kind=kind)
        if kind in choice.days:
            row.days = choice.days[kind]
        if kind == "logs" and not isinstance(choice.log_bytes, msgspec.UnsetType):
            row.log_bytes = choice.log_bytes
        if fault := rules.fault(kind, row.days, row.log_bytes):
            raise Refused(422, "invalid", fault, errors=[FieldError(f"/days/{kind[:20]}", fault, "invalid")])
        if rules.lengthens(kind, row.days, row.log_bytes):
            permitted(request, Permit.CHANGE_RETENTION, _("keep records of a project longer than those of others"))
        row.save()


def _chosen(project: rows.Project) -> dict[str, object]:
    found = Override.objects.filter(project=project)
    return {row.kind: {"days": row.days, "log_bytes": row.log_bytes} for row in found}


def _project(user: User, name: str) -> rows.Project:
    project = permissions.visible_projects(user).filter(name=name).first()
    if project is None:
        raise not_found(_("project {name}").format(name=name[:63]))
    return project


def _shown(project: rows.Project) -> ProjectRetention:
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
