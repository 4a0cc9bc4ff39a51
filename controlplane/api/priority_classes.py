"""Priority classes: named priorities."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.pagination import WholeList
from controlplane.api.problem import Problem
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools.models import PriorityClass
from controlplane.queries.priority_classes import priority_classes


class PriorityClassSerializer(editing.EditSerializer):
    """A named number; bigger is more urgent. ``restricted`` classes are for leads of a project and for staff."""

    restricted = serializers.BooleanField(source="staff_only", default=False)

    class Meta:
        model = PriorityClass
        fields = ["name", "value", "preemptible", "restricted"]

    def update(self, instance: Any, validated_data: dict[str, Any]) -> Any:
        """Keeps the name, which jobs and job files have."""
        if validated_data.pop("name", instance.name) != instance.name:
            raise serializers.ValidationError({"name": [_FIXED]})
        return super().update(instance, validated_data)


_FIXED = serializers.ErrorDetail(gettext_noop("a class keeps its name; make another one"), code="unchangeable")


@extend_schema_view(list=extend_schema(description="All priority classes, highest priority first."))
class PriorityClassViewSet(ListModelMixin, ResourceViewSet):
    """All priority classes, highest priority first."""

    scope = "admin"
    permits = {
        "create": (Permit.ADD_CLASSES, gettext_noop("add a priority class")),
        "partial_update": (Permit.CHANGE_CLASSES, gettext_noop("change a priority class")),
        "destroy": (Permit.DELETE_CLASSES, gettext_noop("delete a priority class")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("priority class {name}")
    examples = {"name": "night"}
    serializer_class = PriorityClassSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[PriorityClass]:
        return priority_classes()

    @extend_schema(responses=PriorityClassSerializer)
    def retrieve(self, request: Request, name: str) -> Response:
        """A priority class by its name; its ETag is what a change needs."""
        return self.shown(self.get_object())

    @extend_schema(
        operation_id="priority_classes_create",
        responses={201: PriorityClassSerializer, 400: Problem},
        examples=[OpenApiExample("Below all", {"name": "night", "value": 100}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Adds a priority class. For accountants."""
        return self.shown(editing.create(PriorityClassSerializer, request.data), status=201)

    @extend_schema(
        operation_id="priority_classes_change",
        responses={200: PriorityClassSerializer, 400: Problem, 412: Problem, 428: Problem},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("Less urgent", {"value": 90}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a priority class for jobs that are submitted from now on. For accountants."""
        return self.shown(editing.change(request, self.get_object(), PriorityClassSerializer))

    @extend_schema(
        operation_id="priority_classes_delete", parameters=[editing.IF_MATCH], responses={204: None, 428: Problem}
    )
    def destroy(self, request: Request, name: str) -> Response:
        """Deletes a priority class; jobs that have it keep its value. For accountants."""
        editing.delete(request, self.get_object(), PriorityClassSerializer)
        return Response(status=204)
