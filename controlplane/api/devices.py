"""Devices with their holders and newest measurements. Every signed-in user sees all devices."""

from __future__ import annotations

from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.serializers import PageSerializer, ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet, reasoned_action
from controlplane.fleet import models as rows
from controlplane.fleet import service
from controlplane.queries import device_history, devices, metrics


class DeviceSerializer(ReadModelSerializer):
    class Meta:
        model = devices.Device
        read = devices.shown


class SpanSerializer(StrictSerializer):
    """The span to show."""

    since_s = serializers.FloatField(
        default=900.0, min_value=1, max_value=metrics.LONGEST_S,
        help_text="How many seconds back from now, up to 14 days; 900 by default.",
    )  # fmt: skip


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

    @extend_schema(operation_id="devices_metrics", responses=device_history.DeviceMetrics, parameters=[SpanSerializer])
    @action(detail=True, pagination_class=None, filterset_class=None)
    def metrics(self, request: Request, name: str) -> Response:
        """The measurements of a device over time, in at most 300 steps."""
        since_s = self.asked(SpanSerializer)["since_s"]
        return Response(device_history.measured(self.get_object(), since_s))

    @extend_schema(
        operation_id="devices_claims",
        responses=device_history.PastClaimPage,
        parameters=[PageSerializer],
        filters=False,
    )
    @action(detail=True, filterset_class=None)
    def claims(self, request: Request, name: str) -> Response:
        """Who held a device, newest first. Claims of jobs that you may not see have no names."""
        self.asked(PageSerializer)
        rows = device_history.claims_of(self.get_object())
        return self.page(rows, "-id", lambda found: device_history.shown(found, self.user))

    @reasoned_action
    def cordon(self, request: Request, name: str) -> Response:
        """Takes a device out of service; stages that hold it go on. A reason is required."""
        return self.act(service.cordon)

    @reasoned_action
    def uncordon(self, request: Request, name: str) -> Response:
        """Returns a cordoned device to service."""
        return self.act(service.uncordon)
