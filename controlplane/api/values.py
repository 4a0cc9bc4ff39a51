"""The numbers that a job's stages reported, by step: what a loss curve is drawn from, also long after its end."""

from __future__ import annotations

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.jobs import found
from controlplane.api.problem import Problem
from controlplane.api.resource import Resource, asked, parameters, signed_in
from controlplane.jobs import curves
from controlplane.jobs.models import Curves


class ReportedSeries(msgspec.Struct, frozen=True):
    """One number over the steps. A value is null where the steps begin anew, so that a line breaks there. ``reports``
    tells of how many reports these are the points: of more than a few hundred the extremes are kept."""

    name: str
    steps: list[float]
    values: list[float | None]
    reports: int


class ReportedNumbers(msgspec.Struct, frozen=True):
    """What one attempt reported."""

    stage: str
    attempt: int
    series: list[ReportedSeries]


class ReportedList(msgspec.Struct, frozen=True):
    """What a job's attempts reported, in the order of its stages: of the newest sixteen that reported any number."""

    results: list[ReportedNumbers]


class ValueQuery(msgspec.Struct, frozen=True):
    """Which of them."""

    stage: str = ""
    name: str = ""


DESCRIBED = {"stage": "Name of a stage; all by default.", "name": "Name of a number, such as loss; all by default."}


class JobValues(Resource):
    """The reported numbers of a job."""

    @extend_schema(
        operation_id="jobs_values",
        responses={200: ReportedList, 404: Problem},
        parameters=parameters(ValueQuery, DESCRIBED),
    )
    def get(self, request: Request, name: str) -> Response:
        """The numbers that the job's stages reported through the runtime, by step, at most 16 names per attempt."""
        query, job = asked(request, ValueQuery), found(signed_in(request), name)
        rows = Curves.objects.filter(attempt__stage__job=job).select_related("attempt__stage")
        if query.stage:
            rows = rows.filter(attempt__stage__name=query.stage)
        ordered = rows.order_by("attempt__stage__index", "attempt__number")
        told = [
            ReportedNumbers(row.attempt.stage.name, row.attempt.number, _series(row, query.name)) for row in ordered
        ]
        return Response(ReportedList([one for one in told if one.series]))


def _series(row: Curves, only: str) -> list[ReportedSeries]:
    return [_one(name, curve) for name, curve in curves.whole(row).items() if not only or name == only]


def _one(name: str, curve: curves.Curve) -> ReportedSeries:
    steps: list[float] = []
    values: list[float | None] = []
    for step, value in curve.drawn():
        if steps and step < steps[-1]:
            steps.append(steps[-1])
            values.append(None)
        steps.append(step)
        values.append(value)
    return ReportedSeries(name, steps, values, curve.reports)
