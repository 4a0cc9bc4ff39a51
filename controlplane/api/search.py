"""Search over what the user may see."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import search


class SearchQuerySerializer(StrictSerializer):
    """What is searched for."""

    q = serializers.CharField(max_length=search.LONGEST)
    limit = serializers.IntegerField(default=6, min_value=1, max_value=search.MOST, help_text="How many of each kind.")


WORDS = OpenApiParameter(
    "q",
    str,
    required=True,
    description="A part of a name; the number of a job; the place of a device: g07:3.",
    examples=[OpenApiExample("A part of a job's name", "llama")],
)


class SearchViewSet(SingleViewSet):
    """What is found by a few words."""

    @extend_schema(operation_id="search", responses=search.Search, parameters=[SearchQuerySerializer, WORDS])
    def retrieve(self, request: Request) -> Response:
        """Jobs, nodes, devices, pools, projects and people that you may see, the best of each kind."""
        query = self.asked(SearchQuerySerializer)
        return Response(search.search(self.user, query["q"], query["limit"]))
