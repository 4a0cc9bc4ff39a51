"""Devices with their holders and newest measurements. Every signed-in user sees all devices."""

from __future__ import annotations

from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet, reasoned_action
from controlplane.fleet import models as rows
from controlplane.fleet import service
from controlplane.queries import devices


class DeviceSerializer(ReadModelSerializer):
    class Meta:
        model = devices.Device
        read = devices.shown


@extend_schema_view(
    list=extend_schema(description="The devices of the cluster."),
    retrieve=extend_schema(description="A device by its uuid."),
)
class DeviceViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Devices; staff cordon them."""

    scope = "admin"
    permits = {
        "cordon": (Permit.OPERATE_DEVICES, gettext_noop("cordon a device")),
        "uncordon": (Permit.OPERATE_DEVICES, gettext_noop("uncordon a device")),
    }
    examples = {"name": "GPU-n1-0"}
    lookup_value_converter = "path"
    queryset = devices.present()
    filterset_class = devices.DeviceFilter
    ordering = "uuid"
    serializer_class = DeviceSerializer

    def get_object(self) -> rows.Device:
        return devices.found(self.kwargs["name"])

    @reasoned_action
    def cordon(self, request: Request, name: str) -> Response:
        """Takes a device out of service; stages that hold it go on. A reason is required."""
        return self.act(service.cordon)

    @reasoned_action
    def uncordon(self, request: Request, name: str) -> Response:
        """Returns a cordoned device to service."""
        return self.act(service.uncordon)
