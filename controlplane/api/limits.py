"""Limits of users, and how much of each is in use."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.named_field import NamedField
from controlplane.api.pagination import WholeList
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools import models as rows
from controlplane.queries import limits


class LimitSerializer(ReadModelSerializer):
    class Meta:
        model = limits.Limit
        read = limits.shown


class LimitSettingsSerializer(editing.EditSerializer):
    """What people set of a limit: whom, in which project and pool, and how much; null is any of them, or unlimited."""

    user = NamedField("username", queryset=User.objects.all(), allow_null=True, default=None)
    project = NamedField("name", queryset=Project.objects.all(), allow_null=True, default=None)
    pool = NamedField("name", queryset=rows.Pool.objects.all(), allow_null=True, default=None)

    class Meta:
        model = rows.Limit
        fields = ["user", "project", "pool", "running", "waiting", "devices"]


EXAMPLE = {"pool": "default", "running": 20, "waiting": 200, "devices": 16}


@extend_schema_view(list=extend_schema(description="The limits that count for you; with the permission, all."))
class LimitViewSet(ListModelMixin, ResourceViewSet):
    """The limits that count for you; with the permission, all."""

    scope = "admin"
    permits = {
        "create": (Permit.ADD_LIMITS, gettext_noop("add a limit of users")),
        "partial_update": (Permit.CHANGE_LIMITS, gettext_noop("change a limit of users")),
        "destroy": (Permit.DELETE_LIMITS, gettext_noop("delete a limit of users")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("limit {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = rows.Limit.objects.none()
    serializer_class = LimitSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[rows.Limit]:
        if self.action in self.permits:
            return rows.Limit.objects.select_related("user", "project", "pool")
        return limits.visible(self.user)

    @extend_schema(responses=LimitSettingsSerializer)
    def retrieve(self, request: Request, number: int) -> Response:
        """What is set of a limit; its ETag is what a change needs. The list tells its use."""
        return Response(editing.settings_of(self.get_object(), LimitSettingsSerializer))

    @extend_schema(
        operation_id="limits_create",
        request=LimitSettingsSerializer,
        responses={201: LimitSerializer},
        examples=[OpenApiExample("Of every user in a pool", EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Limits one user, or every user each for themselves. For accountants."""
        return self.shown(editing.create(LimitSettingsSerializer, request.data), status=201)

    @extend_schema(
        operation_id="limits_change",
        request=LimitSettingsSerializer,
        responses={200: LimitSettingsSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("More", {"running": 40}, request_only=True)],
    )
    def partial_update(self, request: Request, number: int) -> Response:
        """Changes a limit, with ``If-Match`` as it was read. For accountants."""
        row = editing.change(request, self.get_object(), LimitSettingsSerializer)
        return Response(editing.settings_of(row, LimitSettingsSerializer))

    @extend_schema(operation_id="limits_delete", parameters=[editing.IF_MATCH], responses={204: None})
    def destroy(self, request: Request, number: int) -> Response:
        """Deletes a limit. For accountants."""
        editing.delete(request, self.get_object(), LimitSettingsSerializer)
        return Response(status=204)
