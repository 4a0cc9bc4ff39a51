"""Projects that the asking user may know of, with their members."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import models as rows
from controlplane.accounts import permissions, secrets
from controlplane.api.pagination import WholeList
from controlplane.api.problem import Problem
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import secrets as secret_rows
from controlplane.queries.projects import Project, shown


class SecretValueSerializer(StrictSerializer):
    """A value: text of at most 48 KiB without NUL."""

    value = serializers.CharField(allow_blank=True, trim_whitespace=False)


class ProjectSerializer(ReadModelSerializer):
    class Meta:
        model = Project
        read = shown


@extend_schema_view(retrieve=extend_schema(description="A project by its name."))
class ProjectViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """The projects that you may know of."""

    noun = gettext_noop("project {name}")
    examples = {"name": "default", "secret": "HF_TOKEN"}
    queryset = rows.Project.objects.none()
    serializer_class = ProjectSerializer
    pagination_class = WholeList

    @extend_schema(operation_id="secrets_list", responses=secret_rows.SecretList)
    @action(detail=True, url_path="secrets")
    def list_secrets(self, request: Request, name: str) -> Response:
        """The secrets of a project. No answer holds a value."""
        return Response(secret_rows.of_project(self.get_object(), self.user))

    @extend_schema(
        operation_id="secrets_put",
        request=SecretValueSerializer,
        responses={200: secret_rows.Secret, 201: secret_rows.Secret, 409: Problem, 422: Problem, 503: Problem},
        examples=[OpenApiExample("A token", {"value": "hf_..."}, request_only=True)],
    )
    @action(
        detail=True,
        methods=["put"],
        url_path="secrets/<str:secret>",
        largest_body=secrets.LARGEST * 6 + 1024,  # as many bytes as JSON may make of a value
    )
    def put_secret(self, request: Request, name: str, secret: str) -> Response:
        """Sets a secret, or gives it a new value: stages that start later get that. Putting the value that it has
        already changes nothing. For members and leads of the project and operators."""
        project, value = self.get_object(), self.body(SecretValueSerializer)["value"]
        row, is_new = secrets.put(self.user, project, secret, value)
        return Response(secret_rows.shown(row), status=201 if is_new else 200)

    @extend_schema(operation_id="secrets_delete", responses={204: None})
    @put_secret.mapping.delete
    def delete_secret(self, request: Request, name: str, secret: str) -> Response:
        """Deletes a secret, if there is one of this name. Stages that name it wait until it is set again. For leads of
        the project and operators."""
        secrets.delete(self.user, self.get_object(), secret)
        return Response(status=204)

    def get_queryset(self) -> QuerySet[rows.Project]:
        return permissions.visible_projects(self.user)
