"""Maintenance windows: when a node or a pool is out of service, and which stages that affects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db.models import Model
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.mixins import require_if_match, unless_changed
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import DryRunSerializer, MomentField, ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.fleet import calendar, maintenance
from controlplane.fleet.calendar import EntryRefused
from controlplane.fleet.models import MaintenanceWindow as Row
from controlplane.fleet.models import Node
from controlplane.jobs.section import FieldError
from controlplane.pools.models import Pool
from controlplane.queries import maintenance as windows


class MaintenanceWindowSerializer(ReadModelSerializer):
    class Meta:
        model = windows.MaintenanceWindow
        read = windows.shown


class CalendarEntrySerializer(StrictSerializer):
    """A time in the calendar, or one that recurs: with ``cron`` and ``lasts_s``, one begins at each time of the line
    between ``starts_at`` and ``ends_at``. Times have a zone."""

    starts_at = MomentField()
    ends_at = MomentField()
    cron = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=100,
        help_text="Minute, hour, day of the month, month, day of the week, such as 0 3 * * 1.",
    )
    time_zone = serializers.CharField(
        default="UTC", max_length=63, help_text="Of the cron line, such as Europe/Berlin."
    )
    lasts_s = serializers.IntegerField(
        default=None, allow_null=True, min_value=60, max_value=30 * 86_400, help_text="How long each time lasts."
    )
    reason = serializers.CharField(allow_blank=True)


class WindowAskedSerializer(CalendarEntrySerializer):
    """A window for one node, or for all nodes of one pool."""

    node = serializers.CharField(default="", allow_blank=True)
    pool = serializers.CharField(default="", allow_blank=True)


REFUSED = "invalid_window"
NAMED = {"node": Node, "pool": Pool}
EXAMPLE = {"starts_at": "2100-01-01T06:00:00Z", "ends_at": "2100-01-01T08:00:00Z", "reason": "new cables"}


@extend_schema_view(list=extend_schema(description="The windows that have not ended."))
class MaintenanceWindowViewSet(ListModelMixin, ResourceViewSet):
    """Maintenance windows; staff plan and cancel them."""

    parser_classes = [BoundedJSON, BoundedMergePatch]
    scope = "admin"
    permits = {
        "create": (Permit.PLAN_MAINTENANCE, gettext_noop("plan a maintenance")),
        "partial_update": (Permit.CANCEL_MAINTENANCE, gettext_noop("change a maintenance")),
        "cancel": (Permit.CANCEL_MAINTENANCE, gettext_noop("cancel a maintenance")),
    }
    noun = gettext_noop("maintenance window {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = windows.windows()
    filterset_class = windows.WindowFilter
    ordering = "-id"
    serializer_class = MaintenanceWindowSerializer

    @extend_schema(
        operation_id="maintenance_plan",
        request=WindowAskedSerializer,
        responses={200: windows.MaintenanceWindowDetail, 201: windows.MaintenanceWindowDetail},
        parameters=[DryRunSerializer],
        examples=[OpenApiExample("A node", {**EXAMPLE, "node": "n1"}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Plans a window, and returns the running stages that may run into it. Only staff."""
        only_tried, body = self.asked(DryRunSerializer)["dry_run"], self.body(WindowAskedSerializer)
        with refused_as(REFUSED):
            row = maintenance.plan(**looked_up(body, NAMED), actor=self.user.get_username(), only_tried=only_tried)
        return Response(windows.detail(row, self.user), status=200 if only_tried else 201)

    @extend_schema(
        operation_id="maintenance_change",
        request=WindowAskedSerializer,
        responses={200: windows.MaintenanceWindowDetail},
        parameters=[DryRunSerializer, editing.IF_MATCH],
        examples=[OpenApiExample("Another reason", {"reason": "new cables and fans"}, request_only=True)],
    )
    def partial_update(self, request: Request, number: int) -> Response:
        """Changes what is named of a window that has not ended, with ``If-Match`` as it was read, the stages that it
        meets included, or in a dry run tells what it would meet. Only staff."""
        only_tried = self.asked(DryRunSerializer)["dry_run"]
        if not only_tried:
            require_if_match(request)
        taken = WindowAskedSerializer(data=request.data, partial=True)
        taken.is_valid(raise_exception=True)
        with refused_as(REFUSED):
            given = looked_up(taken.validated_data, NAMED)
            row = maintenance.change(self.get_object(), only_tried=only_tried, judge=self._unless_changed, **given)
        return Response(windows.detail(row, self.user))

    def _unless_changed(self, now: Row) -> None:
        unless_changed(self.request, windows.detail(now, self.user))

    @extend_schema(responses=windows.MaintenanceWindowDetail)
    def retrieve(self, request: Request, number: int) -> Response:
        """A window, and the running stages that may run into it."""
        return Response(windows.detail(self.get_object(), self.user))

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, number: int) -> Response:
        """Cancels a window, also one that has begun. Only staff."""
        return self.shown(maintenance.cancel(self.get_object(), self.user.get_username()))


def looked_up(body: Mapping[str, Any], models: Mapping[str, type[Model]]) -> dict[str, Any]:
    """Return a body with rows where it has their names: a list for a list, none for an empty name.

    Raises EntryRefused for a name that is not there.
    """
    found = dict(body)
    for field in (each for each in models if each in body):
        names = body[field] if isinstance(body[field], list) else [body[field]] if body[field] else []
        rows = calendar.rows_named(models[field], field, names)
        found[field] = rows if isinstance(body[field], list) else next(iter(rows), None)
    return found


@contextmanager
def refused_as(code: str) -> Iterator[None]:
    """A context in which an entry of the calendar that cannot be is answered with 422, this code and its field."""
    try:
        yield
    except EntryRefused as error:
        fields = [FieldError(f"/{error.field}", str(error), "invalid")]
        raise RequestRefused(422, code, str(error), errors=fields) from None
