"""Budgets of device-hours of projects, and what is used of each."""

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
from controlplane.queries import budgets
from controlplane.usage import budgets as counted


class BudgetSerializer(ReadModelSerializer):
    class Meta:
        model = budgets.Budget
        read = budgets.shown


class BudgetSettingsSerializer(editing.EditSerializer):
    """What people set of a budget: hours of devices of a kind (empty: all other than CPUs) in a period, and what
    happens when they are used up. ``first_day`` and ``last_day`` are for the period ``dates`` only."""

    project = NamedField("name", queryset=Project.objects.all())

    class Meta:
        model = rows.Budget
        fields = ["project", "kind", "normalised", "period", "first_day", "last_day", "hours", "at_end"]


EXAMPLE = {"project": "default", "kind": "gpu", "hours": 500, "period": "month", "at_end": "hold"}


@extend_schema_view(
    list=extend_schema(description="The budgets of your projects, what is used of each, and a forecast.")
)
class BudgetViewSet(ListModelMixin, ResourceViewSet):
    """The budgets of your projects, what is used of each, and a forecast."""

    scope = "admin"
    permits = {
        "create": (Permit.ADD_BUDGETS, gettext_noop("add a budget")),
        "partial_update": (Permit.CHANGE_BUDGETS, gettext_noop("change a budget")),
        "destroy": (Permit.DELETE_BUDGETS, gettext_noop("delete a budget")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("budget {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = rows.Budget.objects.none()
    serializer_class = BudgetSerializer
    pagination_class = WholeList

    def get_queryset(self) -> QuerySet[rows.Budget]:
        if self.action in self.permits:
            return rows.Budget.objects.select_related("project")
        return budgets.visible(self.user)

    @extend_schema(responses=BudgetSettingsSerializer)
    def retrieve(self, request: Request, number: int) -> Response:
        """What is set of a budget; its ETag is what a change needs. The list tells what is used of it."""
        return Response(editing.settings_of(self.get_object(), BudgetSettingsSerializer))

    @extend_schema(
        operation_id="budgets_create",
        request=BudgetSettingsSerializer,
        responses={201: BudgetSerializer},
        examples=[OpenApiExample("GPUs, each month", EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Gives a project a budget. For accountants."""
        row = editing.create(BudgetSettingsSerializer, request.data)
        counted.refresh([row])
        return self.shown(row, status=201)

    @extend_schema(
        operation_id="budgets_change",
        request=BudgetSettingsSerializer,
        responses={200: BudgetSettingsSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("More", {"hours": 800}, request_only=True)],
    )
    def partial_update(self, request: Request, number: int) -> Response:
        """Changes a budget, with ``If-Match`` as it was read. For accountants. What waits for it may start at once."""
        row = editing.change(request, self.get_object(), BudgetSettingsSerializer)
        counted.refresh([row])
        return Response(editing.settings_of(row, BudgetSettingsSerializer))

    @extend_schema(operation_id="budgets_delete", parameters=[editing.IF_MATCH], responses={204: None})
    def destroy(self, request: Request, number: int) -> Response:
        """Deletes a budget, so that nothing is held back or told for it any more. For accountants."""
        editing.delete(request, self.get_object(), BudgetSettingsSerializer)
        return Response(status=204)
