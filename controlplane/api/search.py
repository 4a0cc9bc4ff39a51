"""Search over what the user may see."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import search


class SearchQuerySerializer(StrictSerializer):
    """What is searched for."""

    q = serializers.CharField(
        max_length=search.LONGEST, help_text="A part of a name; the number of a job; the place of a device: g07:3."
    )
    limit = serializers.IntegerField(default=6, min_value=1, max_value=search.MOST, help_text="How many of each kind.")


class SearchViewSet(SingleViewSet):
    """What is found by a few words."""

    @extend_schema(operation_id="search", responses=search.Search, parameters=[SearchQuerySerializer])
    def retrieve(self, request: Request) -> Response:
        """Jobs, nodes, devices, pools, projects and people that you may see, the best of each kind."""
        query = self.asked(SearchQuerySerializer)
        return Response(search.search(self.user, query["q"], query["limit"]))
