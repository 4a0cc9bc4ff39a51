"""The models of devices in the cluster. Every signed-in user sees them."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import hardware


class HardwareViewSet(SingleViewSet):
    """Hardware."""

    @extend_schema(operation_id="hardware", responses=hardware.HardwareList)
    def retrieve(self, request: Request) -> Response:
        """The models of devices: their declared rates, how many there are and are free, and what they suit."""
        return Response(hardware.hardware())
