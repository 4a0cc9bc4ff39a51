"""The overview of the cluster, and what its panels show: loads by group, capacity over time, the largest gangs."""

from __future__ import annotations

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import capacity_history, gangs, loads, overview
from controlplane.queries.device_map import METRICS


class OverviewViewSet(SingleViewSet):
    """The overview of the cluster."""

    @extend_schema(operation_id="overview", responses=overview.Overview)
    def retrieve(self, request: Request) -> Response:
        """Tiles, the map of devices, the queue, running stages, and signs that need attention."""
        return Response(overview.now(self.user))


class LoadsQuerySerializer(StrictSerializer):
    """The metric, and the groups."""

    metric = serializers.ChoiceField(METRICS, default="utilisation", help_text="What is measured.")
    by = serializers.ChoiceField(loads.GROUPS, default="pool", help_text="What the devices are grouped by.")


class LoadsViewSet(SingleViewSet):
    """The load of groups of devices."""

    @extend_schema(operation_id="overview_loads", responses=loads.Loads, parameters=[LoadsQuerySerializer])
    def retrieve(self, request: Request) -> Response:
        """One metric of all devices by pool, node, kind, model or project."""
        query = self.asked(LoadsQuerySerializer)
        return Response(loads.loads(self.user, query["metric"], query["by"]))


class CapacityHistoryQuerySerializer(StrictSerializer):
    """The range."""

    within = serializers.ChoiceField(list(capacity_history.RANGES), default="day", help_text="The range, up to now.")


class CapacityHistoryViewSet(SingleViewSet):
    """Capacity, allocation and queue over time."""

    @extend_schema(
        operation_id="overview_history",
        responses=capacity_history.CapacityHistory,
        parameters=[CapacityHistoryQuerySerializer],
    )
    def retrieve(self, request: Request) -> Response:
        """How many devices were there and how many allocated, by kind, and how many stages waited."""
        query = self.asked(CapacityHistoryQuerySerializer)
        return Response(capacity_history.history(self.user, query["within"]))


class Gangs(msgspec.Struct, frozen=True):
    """The largest gang of each model."""

    results: list[gangs.Gang]


class GangsViewSet(SingleViewSet):
    """The largest gangs that fit now."""

    @extend_schema(operation_id="overview_gangs", responses=Gangs)
    def retrieve(self, request: Request) -> Response:
        """For each model, on how many nodes of one pool how many whole devices are free."""
        return Response(Gangs(gangs.gangs()))
