"""Usage of devices by day, project, user, job, pool and model, as JSON or as CSV for accounting."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import usage


class UsageQuerySerializer(StrictSerializer):
    """The days, the groups, and which project."""

    to = serializers.CharField(default="", allow_blank=True, help_text="Last UTC day, included; today by default.")
    by = serializers.CharField(
        default="project",
        allow_blank=True,
        help_text=f"Groups of the rows, separated by commas: {', '.join(usage.GROUPS)}.",
    )
    project = serializers.CharField(default="", allow_blank=True, help_text="Name of a project; all by default.")
    limit = serializers.IntegerField(
        default=usage.USUAL_JOBS,
        min_value=1,
        max_value=usage.MOST_JOBS,
        help_text="By job: how many jobs, of those that were charged most; `rest` is what all others used.",
    )
    format = serializers.ChoiceField(choices=["json", "csv"], default="json")

    def get_fields(self) -> dict[str, Any]:
        said = "First UTC day, such as 2027-01-01; 29 days before the last by default."
        return {"from": serializers.CharField(default="", allow_blank=True, help_text=said), **super().get_fields()}


class UsageViewSet(SingleViewSet):
    """Usage."""

    @extend_schema(
        operation_id="usage",
        responses={(200, "application/json"): usage.UsageReport, (200, "text/csv"): OpenApiTypes.STR},
        parameters=[UsageQuerySerializer],
    )
    def retrieve(self, request: Request) -> Response | HttpResponse:
        """Device time, energy and cost, of which you see your own and that of your projects. Rows are always by kind of
        device, since hours of different kinds are not the same. By job, these are at most 92 days, and the name of a
        job is told to who may see the job."""
        asked = self.asked(UsageQuerySerializer)
        query = usage.asked(asked["from"], asked["to"], asked["by"], asked["project"], asked["limit"])
        found = usage.usage(self.user, query)
        if asked["format"] == "json":
            return Response(found)
        response = HttpResponse(usage.as_csv(found), content_type="text/csv; charset=utf-8")
        name = f"usage-{query.first}-{query.last}.csv"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        response["X-Content-Type-Options"] = "nosniff"
        return response
