"""Simulations: a trace, a world, profiles, loads and seeds, run and stored."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.body import LARGEST_BATCH
from controlplane.api.permissions import permitted, signed_in
from controlplane.api.problem import Problem
from controlplane.api.room import HasRoom
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import simulations
from controlplane.simulations import models as rows
from controlplane.simulations import service


class SimulationSerializer(ReadModelSerializer):
    class Meta:
        model = simulations.Simulation
        read = simulations.shown


class ProfilesField(serializers.JSONField):
    """Names of profiles, or a mapping of names to profiles as data."""

    default_error_messages = {"shape": _("must be a list of names, or a mapping of names to profiles")}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict) and not (isinstance(data, list) and all(isinstance(one, str) for one in data)):
            self.fail("shape")
        return data


class ScenarioSerializer(StrictSerializer):
    """What to simulate.

    ``trace`` has one of ``text`` (CSV, SWF or JSON lines, with ``format`` if it is not evident), ``generate`` (jobs,
    per_hour, median_s, sigma, widths, projects, daily, seed), ``history`` (days, pool: finished stages that you
    may see) and ``queue`` (pool: those that run or wait now, for as long as is predicted, as if submitted at once);
    ``first`` limits it to the first jobs. ``world`` has nodes (``8x8:H100,4x8:A100``) or the ``pool`` whose nodes it
    has, cores, error, mtbf_h, checkpoint_s, every_s and weights of projects. ``profiles`` are names, or a mapping of
    names to profiles as data.
    """

    name = serializers.CharField(default="simulation", allow_blank=True)
    trace = serializers.DictField(default=dict)
    world = serializers.DictField(default=dict)
    profiles = ProfilesField(default=list)  # type: ignore[arg-type]  # its stubs know mappings only
    loads = serializers.ListField(child=serializers.FloatField(), default=lambda: [1.0])
    seeds = serializers.ListField(child=serializers.IntegerField(), default=lambda: [0])


SMALL = {
    "trace": {"generate": {"jobs": 20, "per_hour": 30}},
    "world": {"nodes": "1x4:A100"},
    "profiles": ["fifo", "hybrid"],
}


class MayStartSimulation(BasePermission):
    """Refuses a new simulation beyond the limits before its trace is read."""

    def has_permission(self, request: Request, view: Any) -> bool:
        # The body limit checks this before the action is known.
        if request.method == "POST" and getattr(view, "action", "create") == "create":
            service.check_room(signed_in(request))
        return True


class RoomForResult(HasRoom):
    """Refuses a new simulation while the disk has no room for its result; cancelling one needs none."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return getattr(view, "action", "create") != "create" or super().has_permission(request, view)


@extend_schema_view(list=extend_schema(description="Your simulations, newest first; staff see everybody's."))
class SimulationViewSet(ListModelMixin, ResourceViewSet):
    """Simulations."""

    largest_body = LARGEST_BATCH
    permission_classes = [*ResourceViewSet.permission_classes, RoomForResult, MayStartSimulation]
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = rows.Simulation.objects.none()
    ordering = "-id"
    serializer_class = SimulationSerializer

    def get_queryset(self) -> QuerySet[rows.Simulation]:
        return simulations.visible(self.user)

    def get_object(self) -> rows.Simulation:
        return simulations.found(self.user, self.kwargs["number"])

    @extend_schema(
        operation_id="simulations_submit",
        request=ScenarioSerializer,
        responses={201: SimulationSerializer, 507: Problem},
        examples=[OpenApiExample("Two profiles", SMALL, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Starts a simulation: at most 20,000 stages, 20,000 devices and 24 worlds (profiles x loads x seeds)."""
        return self.shown(service.submit(self.body(ScenarioSerializer), self.user), status=201)

    @extend_schema(responses={200: simulations.SimulationDetail, 410: Problem})
    def retrieve(self, request: Request, number: int) -> Response:
        """Its progress, and its figures, curves, projects and bars once it is done."""
        return Response(simulations.one(self.user, number))

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, number: int) -> Response:
        """Cancels a simulation; its process ends within a second. One that has ended stays as it is."""
        row = self.get_object()
        if row.user_id != self.user.pk:
            permitted(request, Permit.CANCEL_SIMULATIONS, gettext("cancel a simulation of somebody else"))
        service.cancel(row)
        return self.shown(self.get_object())
