"""Faults of the installation, for ``yard doctor``."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import health


class HealthViewSet(SingleViewSet):
    """The state of the installation."""

    @extend_schema(operation_id="health", responses=health.Installation)
    def retrieve(self, request: Request) -> Response:
        """Whether database, scheduler, workers, queues, tasks and storage work."""
        return Response(health.installation(self.user))
