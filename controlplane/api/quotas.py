"""Quotas of projects, and how much of each is in use."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Project
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.named_field import NamedField
from controlplane.api.pagination import WholeList
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools import models as rows
from controlplane.queries import quotas


class QuotaSerializer(ReadModelSerializer):
    class Meta:
        model = quotas.Quota
        read = quotas.shown


class QuotaSettingsSerializer(editing.EditSerializer):
    """What people set of a quota: devices (CPU: cores) of a kind, or of a model if one is named; null is unlimited."""

    project = NamedField("name", queryset=Project.objects.all())

    class Meta:
        model = rows.Quota
        fields = [
            "project", "kind", "model", "normalised", "cohort", "nominal", "borrowing_limit", "lending_limit",
        ]  # fmt: skip


EXAMPLE = {"project": "default", "kind": "gpu", "nominal": 8, "borrowing_limit": 4}


@extend_schema_view(list=extend_schema(description="The quotas of your projects and their use."))
class QuotaViewSet(ListModelMixin, ResourceViewSet):
    """The quotas of your projects and their use."""

    scope = "admin"
    permits = {
        "create": (Permit.ADD_QUOTAS, gettext_noop("add a quota")),
        "partial_update": (Permit.CHANGE_QUOTAS, gettext_noop("change a quota")),
        "destroy": (Permit.DELETE_QUOTAS, gettext_noop("delete a quota")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("quota {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = rows.Quota.objects.none()
    serializer_class = QuotaSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[rows.Quota]:
        if self.action in self.permits:
            return rows.Quota.objects.select_related("project")
        return quotas.visible(self.user)

    @extend_schema(responses=QuotaSettingsSerializer)
    def retrieve(self, request: Request, number: int) -> Response:
        """What is set of a quota; its ETag is what a change needs. The list tells its use."""
        return Response(editing.settings_of(self.get_object(), QuotaSettingsSerializer))

    @extend_schema(
        operation_id="quotas_create",
        request=QuotaSettingsSerializer,
        responses={201: QuotaSerializer},
        examples=[OpenApiExample("GPUs", EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Gives a project a quota. For accountants."""
        return self.shown(editing.create(QuotaSettingsSerializer, request.data), status=201)

    @extend_schema(
        operation_id="quotas_change",
        request=QuotaSettingsSerializer,
        responses={200: QuotaSettingsSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("More", {"nominal": 16}, request_only=True)],
    )
    def partial_update(self, request: Request, number: int) -> Response:
        """Changes a quota, with ``If-Match`` as it was read. For accountants."""
        row = editing.change(request, self.get_object(), QuotaSettingsSerializer)
        return Response(editing.settings_of(row, QuotaSettingsSerializer))

    @extend_schema(operation_id="quotas_delete", parameters=[editing.IF_MATCH], responses={204: None})
    def destroy(self, request: Request, number: int) -> Response:
        """Deletes a quota, so that its project is unlimited there. For accountants."""
        editing.delete(request, self.get_object(), QuotaSettingsSerializer)
        return Response(status=204)
