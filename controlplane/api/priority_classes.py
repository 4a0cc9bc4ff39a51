"""Priority classes: named priorities."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
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
from controlplane.pools.models import PriorityClass
from controlplane.queries import priority_classes

MOST_PROJECTS: Final = 1_000


class PriorityClassSerializer(ReadModelSerializer):
    class Meta:
        model = priority_classes.PriorityClass
        read = priority_classes.shown


class PriorityClassSettingsSerializer(editing.EditSerializer):
    """A named number; bigger is more urgent. ``restricted`` classes are for leads of a project and for staff. With
    ``projects`` only jobs of these may use it, with an empty list none; null is for all."""

    restricted = serializers.BooleanField(source="staff_only", default=False)
    projects = serializers.ListField(
        child=NamedField(slug_field="name", queryset=Project.objects.all()),
        source="allowed_projects",
        max_length=MOST_PROJECTS,
        allow_null=True,
        default=None,
    )

    class Meta:
        model = PriorityClass
        fields = ["name", "value", "preemptible", "restricted", "projects"]

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Names the projects; those that the reader may see, where it is shown to somebody who may not see all."""
        fixed = {name: getattr(instance, name) for name in ("name", "value", "preemptible")}
        reader = self.context.get("user")
        seen = () if reader is None else (priority_classes.seen_by(reader),)
        return {
            **fixed,
            "restricted": instance.staff_only,
            "projects": priority_classes.named(instance, *seen),
        }

    def create(self, validated_data: dict[str, Any]) -> Any:
        return self._with_projects(super().create, validated_data)

    def update(self, instance: Any, validated_data: dict[str, Any]) -> Any:
        """Keeps the name, which jobs and job files have."""
        if validated_data.pop("name", instance.name) != instance.name:
            raise serializers.ValidationError({"name": [_FIXED]})
        return self._with_projects(partial(super().update, instance), validated_data)

    def _with_projects(self, save: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        """Save the row with its projects, of which None means all."""
        if "allowed_projects" not in given:
            return save(given)
        projects = given.pop("allowed_projects")
        row = save({**given, "projects_only": projects is not None})
        row.allowed_projects.set(projects or [])
        return row


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
        return priority_classes.priority_classes()

    @extend_schema(responses=PriorityClassSettingsSerializer)
    def retrieve(self, request: Request, name: str) -> Response:
        """What is set of a priority class; its ETag is what a change needs."""
        return Response(dict(PriorityClassSettingsSerializer(self.get_object(), context={"user": self.user}).data))

    @extend_schema(
        operation_id="priority_classes_create",
        request=PriorityClassSettingsSerializer,
        responses={201: PriorityClassSerializer},
        examples=[
            OpenApiExample(
                "Of one project", {"name": "night", "value": 100, "projects": ["default"]}, request_only=True
            )
        ],
    )
    def create(self, request: Request) -> Response:
        """Adds a priority class. For accountants."""
        return self.shown(editing.create(PriorityClassSettingsSerializer, request.data), status=201)

    @extend_schema(
        operation_id="priority_classes_change",
        request=PriorityClassSettingsSerializer,
        responses={200: PriorityClassSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("Less urgent", {"value": 90}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a priority class for jobs that are submitted from now on; those that have it keep it. For
        accountants."""
        return self.shown(editing.change(request, self.get_object(), PriorityClassSettingsSerializer))

    @extend_schema(operation_id="priority_classes_delete", parameters=[editing.IF_MATCH], responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Deletes a priority class; jobs that have it keep its value. For accountants."""
        editing.delete(request, self.get_object(), PriorityClassSettingsSerializer)
        return Response(status=204)
