"""Past, present and planned holders of each device; planned ones are reservations."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import timeline


class TimelineQuerySerializer(StrictSerializer):
    """The span, and which nodes."""

    to = serializers.CharField(default="", allow_blank=True, help_text="End, likewise; 3600 by default.")
    pool = serializers.CharField(default="", allow_blank=True, help_text="Name of a pool; all by default.")
    node = serializers.CharField(
        default="", allow_blank=True, max_length=63, help_text="Only nodes with this in their name."
    )
    skip = serializers.IntegerField(default=0, min_value=0, max_value=100_000, help_text="So many nodes are left out.")
    nodes = serializers.IntegerField(
        default=timeline.MOST_NODES, min_value=1, max_value=timeline.MOST_NODES, help_text="So many nodes at most."
    )

    def get_fields(self) -> dict[str, Any]:
        said = "Begin, RFC 3339, or seconds relative to now such as -3600 (the default)."
        return {"from": serializers.CharField(default="", allow_blank=True, help_text=said), **super().get_fields()}


class TimelineViewSet(SingleViewSet):
    """The timeline of devices."""

    @extend_schema(operation_id="timeline", responses=timeline.Timeline, parameters=[TimelineQuerySerializer])
    def retrieve(self, request: Request) -> Response:
        """Lanes and segments: past, present and planned."""
        query = self.asked(TimelineQuerySerializer)
        nodes = timeline.Nodes(query["pool"], query["node"], query["skip"], query["nodes"])
        return Response(timeline.between(self.user, query["from"], query["to"], nodes))
