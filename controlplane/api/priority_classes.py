"""Priority classes: names for how urgent a job is."""

from __future__ import annotations

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.resource import Resource
from controlplane.pools import models as rows


class PriorityClass(msgspec.Struct, frozen=True):
    """A named number; bigger is more urgent. ``restricted`` classes are for leads of a project and for staff."""

    name: str
    value: int
    preemptible: bool
    restricted: bool


class PriorityClassList(msgspec.Struct, frozen=True):
    """All classes, the most urgent first."""

    results: list[PriorityClass]


class PriorityClasses(Resource):
    """The list of priority classes."""

    @extend_schema(operation_id="priority_classes_list", responses={200: PriorityClassList})
    def get(self, request: Request) -> Response:
        """All priority classes, the most urgent first."""
        return Response(
            PriorityClassList(
                [
                    PriorityClass(each.name, each.value, each.preemptible, each.staff_only)
                    for each in rows.PriorityClass.objects.order_by("-value")
                ]
            )
        )
