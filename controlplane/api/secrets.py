"""The secrets of a project: their names and versions, never their values."""

from __future__ import annotations

from datetime import datetime

import msgspec
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import models as rows
from controlplane.accounts import permissions, secrets
from controlplane.accounts.models import User
from controlplane.api.problem import Problem, not_found
from controlplane.api.resource import Resource, signed_in, taken


class Secret(msgspec.Struct, frozen=True):
    """A named value that stages of the project get. ``updated_at`` and ``updated_by`` are of its newest version."""

    name: str
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    last_used_at: datetime | None


class SecretList(msgspec.Struct, frozen=True):
    """The secrets of a project by name, and what you may do with them."""

    results: list[Secret]
    may_set: bool
    may_delete: bool


class SecretValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value: text of at most 48 KiB without NUL."""

    value: str


def shown(row: rows.Secret) -> Secret:
    return Secret(
        row.name, row.version, row.created_at, row.created_by, row.updated_at, row.updated_by, row.last_used_at
    )


def project_of(user: User, name: str) -> rows.Project:
    """The project, if this user may know of it; raises 404 otherwise."""
    project = permissions.visible_projects(user).filter(name=name).first()
    if project is None:
        raise not_found(_("project {name}").format(name=name[:63]))
    return project


class Secrets(Resource):
    """The list of a project's secrets."""

    @extend_schema(operation_id="secrets_list", responses={200: SecretList, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """The secrets of a project. No answer holds a value."""
        user = signed_in(request)
        project = project_of(user, name)
        results = [shown(row) for row in secrets.of(project)]
        return Response(SecretList(results, secrets.may_set(user, project), secrets.may_delete(user, project)))


class OneSecret(Resource):
    """One secret of a project."""

    largest_body = secrets.LARGEST * 6 + 1024  # as many bytes as JSON may make of a value

    @extend_schema(
        operation_id="secrets_put",
        request=SecretValue,
        responses={200: Secret, 201: Secret, 403: Problem, 404: Problem, 409: Problem, 422: Problem, 503: Problem},
        examples=[OpenApiExample("A token", {"value": "hf_..."}, request_only=True)],
    )
    def put(self, request: Request, name: str, secret: str) -> Response:
        """Sets a secret, or gives it a new value: stages that start later get that. Putting the value that it has
        already changes nothing. For members and leads of the project and operators."""
        user = signed_in(request)
        project = project_of(user, name)
        row, is_new = secrets.put(user, project, secret, taken(request, SecretValue).value)
        return Response(shown(row), status=201 if is_new else 200)

    @extend_schema(operation_id="secrets_delete", responses={204: None, 403: Problem, 404: Problem})
    def delete(self, request: Request, name: str, secret: str) -> Response:
        """Deletes a secret, if there is one of this name. Stages that name it wait until it is set again. For leads of
        the project and operators."""
        user = signed_in(request)
        secrets.delete(user, project_of(user, name), secret)
        return Response(status=204)
