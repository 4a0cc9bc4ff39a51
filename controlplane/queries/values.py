"""Metrics that a job's stages reported, by step: the points of a loss curve, kept after the stage's end."""

from __future__ import annotations

import msgspec

from controlplane.jobs import curves
from controlplane.jobs.models import Curves, Job


class ReportedSeries(msgspec.Struct, frozen=True):
    """One metric over the steps. A value is null where the steps start again, so that a line breaks there. ``reports``
    is the number of reports behind these points: above a few hundred, the extremes are kept."""

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
    """The reports of a job's attempts, in the order of its stages: of the newest sixteen that reported any number."""

    results: list[ReportedNumbers]


def reported(job: Job, stage: str = "", name: str = "") -> ReportedList:
    """The numbers that this job's stages reported, of one stage or one name where these are given."""
    rows = Curves.objects.filter(attempt__stage__job=job).select_related("attempt__stage")
    if stage:
        rows = rows.filter(attempt__stage__name=stage)
    ordered = rows.order_by("attempt__stage__index", "attempt__number")
    attempts = [ReportedNumbers(row.attempt.stage.name, row.attempt.number, _series(row, name)) for row in ordered]
    return ReportedList([one for one in attempts if one.series])


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
