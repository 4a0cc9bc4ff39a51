"""The cluster at a glance."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import overview


class OverviewViewSet(SingleViewSet):
    """The cluster at a glance."""

    @extend_schema(operation_id="overview", responses=overview.Overview)
    def retrieve(self, request: Request) -> Response:
        """Tiles, the map of devices, the queue, what runs, and what needs attention."""
        return Response(overview.now(self.user))
