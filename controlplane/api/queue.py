"""The queue: waiting jobs with their places."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import queue


class QueueQuerySerializer(StrictSerializer):
    """Which part of the queue."""

    pool = serializers.CharField(
        default="", allow_blank=True, max_length=63, help_text="Name of a pool; all by default."
    )
    first = serializers.IntegerField(
        default=0, min_value=0, max_value=100_000, help_text="How many to leave out at the front."
    )
    limit = serializers.IntegerField(default=100, min_value=1, max_value=500, help_text="At most so many, up to 500.")


class QueueViewSet(SingleViewSet):
    """The queue."""

    @extend_schema(operation_id="queue", responses=queue.QueueSlice, parameters=[QueueQuerySerializer])
    def retrieve(self, request: Request) -> Response:
        """The waiting jobs that you may see, by pool, of higher priority first, with their places and reasons."""
        asked = self.asked(QueueQuerySerializer)
        return Response(queue.read(self.user, asked["pool"], asked["first"], asked["limit"]))
