"""Reservations of nodes for projects, and the calendar of these and of maintenance windows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.maintenance import EXAMPLE, CalendarEntrySerializer, looked_up, refused_as
from controlplane.api.mixins import require_if_match, unless_changed
from controlplane.api.serializers import DryRunSerializer, MomentField, ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet, SingleViewSet
from controlplane.fleet import reservations as service
from controlplane.fleet.models import Node
from controlplane.fleet.models import Reservation as Row
from controlplane.pools.models import Pool
from controlplane.queries import reservations

MOST_NODES, MOST_USERS = 1_000, 100
REFUSED = "invalid_reservation"
NAMED = {"project": Project, "users": User, "nodes": Node, "pool": Pool}
SHOWN = timedelta(days=28)
LONGEST = timedelta(days=366)


class ReservationSerializer(ReadModelSerializer):
    class Meta:
        model = reservations.Reservation
        read = reservations.shown


class ReservationAskedSerializer(CalendarEntrySerializer):
    """A reservation of ``nodes``, or of so many whole nodes of a ``pool`` as have ``count`` devices of a kind or model.

    Without ``users`` it is for all who submit to the project.
    """

    name = serializers.SlugField(max_length=63)
    project = serializers.CharField(max_length=63)
    users = serializers.ListField(child=serializers.CharField(max_length=150), default=list, max_length=MOST_USERS)
    nodes = serializers.ListField(child=serializers.CharField(max_length=63), default=list, max_length=MOST_NODES)
    pool = serializers.CharField(default="", allow_blank=True, max_length=63)
    device = serializers.CharField(
        default="", allow_blank=True, max_length=120, help_text="A kind such as gpu, or a part of a model such as H100."
    )
    count = serializers.IntegerField(default=None, allow_null=True, min_value=1, max_value=1_000_000)


class ReservationChangeSerializer(CalendarEntrySerializer):
    """What is to change of a reservation; it keeps its name and project."""

    users = serializers.ListField(child=serializers.CharField(max_length=150), max_length=MOST_USERS)
    nodes = serializers.ListField(child=serializers.CharField(max_length=63), max_length=MOST_NODES)


DEMO = {**EXAMPLE, "name": "demo", "project": "default", "nodes": ["n1"], "reason": "the demonstration"}


@extend_schema_view(list=extend_schema(description="The reservations that have not ended."))
class ReservationViewSet(ListModelMixin, ResourceViewSet):
    """Reservations of nodes for projects; operators plan and cancel them."""

    parser_classes = [BoundedJSON, BoundedMergePatch]
    scope = "admin"
    permits = {
        "create": (Permit.PLAN_RESERVATIONS, gettext_noop("plan a reservation")),
        "partial_update": (Permit.CANCEL_RESERVATIONS, gettext_noop("change a reservation")),
        "cancel": (Permit.CANCEL_RESERVATIONS, gettext_noop("cancel a reservation")),
    }
    noun = gettext_noop("reservation {name}")
    examples = {"name": "demo"}
    queryset = service.rows()
    filterset_class = reservations.ReservationFilter
    ordering = "-id"
    serializer_class = ReservationSerializer

    @extend_schema(
        operation_id="reservations_plan",
        request=ReservationAskedSerializer,
        responses={200: reservations.Reservation, 201: reservations.Reservation},
        parameters=[DryRunSerializer],
        examples=[OpenApiExample("A node", DEMO, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Plans a reservation, or in a dry run tells which nodes it would have. Only operators."""
        only_tried, body = self.asked(DryRunSerializer)["dry_run"], self.body(ReservationAskedSerializer)
        with refused_as(REFUSED):
            row = service.plan(**looked_up(body, NAMED), actor=self.user.get_username(), only_tried=only_tried)
        return self.shown(row, status=200 if only_tried else 201)

    @extend_schema(
        operation_id="reservations_change",
        request=ReservationChangeSerializer,
        responses={200: reservations.Reservation},
        parameters=[DryRunSerializer, editing.IF_MATCH],
        examples=[OpenApiExample("Another reason", {"reason": "the second demonstration"}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes what is named of a reservation that has not ended, with ``If-Match`` as it was read, or in a dry run
        tells what it would be. What runs in it goes on. Only operators."""
        only_tried = self.asked(DryRunSerializer)["dry_run"]
        if not only_tried:
            require_if_match(request)
        taken = ReservationChangeSerializer(data=request.data, partial=True)
        taken.is_valid(raise_exception=True)
        with refused_as(REFUSED):
            given = looked_up(taken.validated_data, NAMED)
            row = service.change(self.get_object(), only_tried=only_tried, judge=self._unless_changed, **given)
            return self.shown(row)

    def _unless_changed(self, now: Row) -> None:
        unless_changed(self.request, reservations.shown([now], self.user)[0])

    @extend_schema(responses=reservations.Reservation)
    def retrieve(self, request: Request, name: str) -> Response:
        """A reservation by its name."""
        return self.shown(self.get_object())

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, name: str) -> Response:
        """Cancels a reservation, also one that has begun. What runs in it goes on. Only operators."""
        return self.shown(service.cancel(self.get_object(), self.user.get_username()))


class RangeSerializer(StrictSerializer):
    """Selects a part of the calendar."""

    since = MomentField(default=None, help_text="From this time on; now if it is not given.")
    until = MomentField(default=None, help_text="Until this time, at most 366 days later; four weeks if not given.")
    pool = serializers.CharField(default="", max_length=63, help_text="Only what keeps nodes of this pool.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs["since"] = attrs["since"] or timezone.now()
        attrs["until"] = attrs["until"] or attrs["since"] + SHOWN
        if attrs["until"] - attrs["since"] > LONGEST:
            raise serializers.ValidationError({"until": _("at most 366 days can be shown at once")})
        return attrs


class CalendarViewSet(SingleViewSet):
    """When nodes are out of service or reserved."""

    @extend_schema(responses=reservations.Calendar, parameters=[RangeSerializer])
    def retrieve(self, request: Request) -> Response:
        """The times of windows and reservations between two times, each by itself, the earliest first."""
        return Response(reservations.spans(**self.asked(RangeSerializer)))
