"""Arrays: read them with their elements by state, and end, hold or release all elements."""

from __future__ import annotations

from collections.abc import Callable

from django.db.models import QuerySet
from django.utils.translation import gettext, gettext_noop
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.permissions import owned
from controlplane.api.serializers import PageSerializer, ReadModelSerializer, ReasonSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet, reasoned_action
from controlplane.jobs import arrays as acts
from controlplane.jobs import models as rows
from controlplane.queries import arrays


class ArraySerializer(ReadModelSerializer):
    class Meta:
        model = arrays.Array
        read = arrays.shown


class BestQuerySerializer(StrictSerializer):
    """Selects the metric by which the best element is chosen."""

    metric = serializers.CharField(
        default="", allow_blank=True, max_length=200, help_text="Name of a reported number, such as loss."
    )
    goal = serializers.ChoiceField(
        arrays.GOALS, default="min", help_text="Whether the smallest or the largest is best."
    )


@extend_schema_view(list=extend_schema(description="The arrays that you may see, newest first."))
class ArrayViewSet(ListModelMixin, ResourceViewSet):
    """Arrays of jobs."""

    examples = {"name": "1"}
    queryset = rows.Array.objects.none()
    filterset_class = arrays.ArrayFilter
    serializer_class = ArraySerializer

    def get_queryset(self) -> QuerySet[rows.Array]:
        return arrays.visible(self.user)

    def get_ordering(self) -> str:
        return "-number"

    def get_object(self) -> rows.Array:
        return arrays.found(self.user, self.kwargs["name"])

    @extend_schema(responses=arrays.ArrayDetail, parameters=[BestQuerySerializer])
    def retrieve(self, request: Request, name: str) -> Response:
        """An array with its elements by state, and the best of them by a metric that they report."""
        query = self.asked(BestQuerySerializer)
        return Response(arrays.detail(self.get_object(), query["metric"], query["goal"]))

    @extend_schema(responses=arrays.ArrayElementPage, parameters=[PageSerializer])
    @action(detail=True)
    def elements(self, request: Request, name: str) -> Response:
        """The elements of the array in short, in the order of their indexes: parameters, state and reported numbers."""
        self.asked(PageSerializer)
        row = self.get_object()
        return self.page(arrays.elements_of(row), "array_index", lambda jobs: arrays.elements(row, jobs))

    @reasoned_action
    def cancel(self, request: Request, name: str) -> Response:
        """Ends all elements for good; doing it twice is the same as once."""
        return self._act(acts.cancel)

    @reasoned_action
    def hold(self, request: Request, name: str) -> Response:
        """Holds the waiting elements, so that they do not start."""
        return self._act(acts.hold)

    @reasoned_action
    def release(self, request: Request, name: str) -> Response:
        """Releases the held elements, so that they may start again."""
        return self._act(acts.release)

    def _act(self, act: Callable[[rows.Array, str, str], object]) -> Response:
        array = self.get_object()
        owned(self.user, array, gettext(_MAY_NOT[self.action]))
        reason = self.body(ReasonSerializer)["reason"].strip()
        act(array, self.user.get_username(), reason[:500])
        return self.shown(array)


_MAY_NOT = {
    "cancel": gettext_noop("only {user}, a lead of project {project} or staff may cancel this array"),
    "hold": gettext_noop("only {user}, a lead of project {project} or staff may hold this array"),
    "release": gettext_noop("only {user}, a lead of project {project} or staff may release this array"),
}
