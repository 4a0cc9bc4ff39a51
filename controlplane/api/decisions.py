"""The scheduler's decisions per cycle, with reasons and prices, and what another profile would have decided."""

from __future__ import annotations

from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.accounts.permissions import Permit
from controlplane.api.problem import Problem, RequestRefused
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import decisions
from scheduler.decisions import log


class DecisionSerializer(ReadModelSerializer):
    class Meta:
        model = decisions.Decision
        read = decisions.shown


class WaitQuerySerializer(StrictSerializer):
    """A page of the waiting stages of a decision, or one code."""

    code = serializers.CharField(
        default="", allow_blank=True, help_text="Only stages that waited for this primary reason."
    )
    after = serializers.IntegerField(
        default=0, max_value=2**31, help_text=f"Leave out so many; the next {decisions.MOST_SHOWN} are told."
    )


class DifferenceQuerySerializer(StrictSerializer):
    """The other profile."""

    profile = serializers.CharField()


OTHER = OpenApiParameter(
    "profile",
    str,
    required=True,
    description="The other profile.",
    examples=[OpenApiExample("First come, first served", "fifo")],
)


@extend_schema_view(list=extend_schema(description="The recent cycles whose outcome was news, newest first."))
class DecisionViewSet(ListModelMixin, ResourceViewSet):
    """Decisions of the scheduler."""

    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = decisions.decisions()
    filterset_class = decisions.DecisionFilter
    ordering = "-id"
    serializer_class = DecisionSerializer

    @extend_schema(responses=decisions.DecisionDetail, parameters=[WaitQuerySerializer])
    def retrieve(self, request: Request, number: int) -> Response:
        """A decision with its whole plan, as far as the log still has it; waiting stages come 500 at a time."""
        return Response(decisions.one(self.user, number, **self.asked(WaitQuerySerializer)))

    @extend_schema(
        responses={200: decisions.DecisionDifference, 422: Problem},
        parameters=[OTHER],
    )
    @action(detail=True)
    def difference(self, request: Request, number: int) -> Response:
        """The plan of another profile for the inputs of this decision. Changes nothing."""
        return Response(decisions.under(self.user, number, **self.asked(DifferenceQuerySerializer)))

    @extend_schema(
        responses={(200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY, "A segment of one record.")}
    )
    @action(detail=True)
    def record(self, request: Request, number: int) -> HttpResponse:
        """The inputs of a decision as a file for ``scheduler.cli replay``. Staff only: it shows stages of all
        projects."""
        if not permissions.may(self.user, Permit.SEE_DECISIONS):
            raise RequestRefused(
                403, "forbidden", _("a record shows the stages of every project; only staff may take it")
            )
        answer = HttpResponse(decisions.record_of(number), content_type="application/octet-stream")
        answer["Content-Disposition"] = f'attachment; filename="{number:012}{log.SUFFIX}"'
        return answer
