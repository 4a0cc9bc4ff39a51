"""What is wrong with the installation, for ``yard doctor``."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.permissions import Permit
from controlplane.api.viewsets import SingleViewSet
from controlplane.observability.health import Check, checks


class HealthCheckSerializer(serializers.Serializer):
    """Whether one thing works; ``says`` is for who may see alarms, empty for others.

    Without what is ``vital`` nothing starts.
    """

    name = serializers.CharField()
    ok = serializers.BooleanField()
    vital = serializers.BooleanField()
    says = serializers.SerializerMethodField()

    def get_says(self, check: Check) -> str:
        return check.says if permissions.may(self.context["request"].user, Permit.SEE_ALARMS) else ""


class InstallationSerializer(serializers.Serializer):
    """All checks; ``ok`` tells that each of them is."""

    ok = serializers.BooleanField()
    checks = HealthCheckSerializer(many=True)


class HealthViewSet(SingleViewSet):
    """The state of the installation."""

    serializer_class = InstallationSerializer

    @extend_schema(operation_id="health")
    def retrieve(self, request: Request) -> Response:
        """Whether database, scheduler, workers, queues and storage work."""
        found = checks()
        return self.shown({"ok": all(one.ok for one in found), "checks": found})
