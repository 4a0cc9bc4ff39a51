"""``/metrics`` for Prometheus: for whoever may see metrics, and for the networks that a setting names."""

from __future__ import annotations

import ipaddress
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.utils.translation import gettext_noop
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.accounts.permissions import Permit
from controlplane.api.permissions import Scoped, permitted
from controlplane.api.renderers import OneAnswer
from controlplane.observability import exposition

OPENMETRICS = "application/openmetrics-text"


class MayScrape(BasePermission):
    """Admits addresses of ``YARD_METRICS_NETWORKS``, and others by their token or session."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if _is_near(request.META.get("REMOTE_ADDR", "")):
            return True
        if not request.user or not Scoped().has_permission(request, view):
            return False
        permitted(request, Permit.SEE_METRICS, gettext_noop("read metrics"))
        return True


def _is_near(told: str) -> bool:
    try:
        address = ipaddress.ip_address(told)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in settings.METRICS_NETWORKS)


class MetricsView(APIView):
    """All metrics as text."""

    schema = None  # it is no part of the API
    versioning_class = None
    permission_classes = [MayScrape]
    content_negotiation_class = OneAnswer
    http_method_names = ["get", "head", "options"]

    def get(self, request: Request) -> HttpResponse:
        """Answer in OpenMetrics where that is asked for, else in Prometheus' own format."""
        openmetrics = OPENMETRICS in request.headers.get("Accept", "")
        kind = f"{OPENMETRICS}; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
        return HttpResponse(
            exposition.text(openmetrics=openmetrics),
            content_type=f"{kind}; charset=utf-8",
            headers={"Cache-Control": "no-store"},
        )
