"""The overview of the cluster."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import overview


class OverviewViewSet(SingleViewSet):
    """The overview of the cluster."""

    @extend_schema(operation_id="overview", responses=overview.Overview)
    def retrieve(self, request: Request) -> Response:
        """Tiles, the map of devices, the queue, running stages, and signs that need attention."""
        return Response(overview.now(self.user))
