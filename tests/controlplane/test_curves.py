"""The numbers that stages report are kept by step, for as long as the job is there, in a bounded space."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import Phase, Progress
from controlplane.jobs import curves
from controlplane.jobs.curves import NAMES, PER_JOB, POINTS, TAIL, Curve
from controlplane.jobs.models import Attempt, Curves, Job
from tests.controlplane.people import Town
from tests.record.yard import Agent, stage


def drawn(reports: list[tuple[int, float]]) -> Curve:
    curve = Curve()
    for step, value in reports:
        curve.add(step, value)
    return curve


@given(st.integers(1, 2500), st.randoms(use_true_random=False))
def test_a_curve_is_bounded_and_keeps_its_ends_and_its_extremes(count: int, die: random.Random) -> None:
    values = [die.uniform(-1e6, 1e6) for _ in range(count)]
    curve = drawn(list(enumerate(values)))
    points = curve.drawn()
    assert len(points) <= POINTS + 3
    assert curve.reports == len(values)
    assert (points[0], points[-1]) == ((0, values[0]), (len(values) - 1, values[-1]))
    assert {min(values), max(values)} <= {value for _, value in points}
    assert all(values[int(step)] == value for step, value in points), "a point that was never reported"
    assert [step for step, _ in points] == sorted({step for step, _ in points})


def test_a_thinned_curve_is_as_dense_at_its_start_as_at_its_end() -> None:
    steps = [step for step, _ in drawn([(i, math.sin(i / 3000)) for i in range(100_000)]).drawn()]
    by_quarter = [sum(25_000 * q <= step < 25_000 * (q + 1) for step in steps) for q in range(4)]
    assert min(by_quarter) >= 0.8 * max(by_quarter)


def tell(agent: Agent, job: Job, step: int | None, **values: Any) -> None:
    agent.set(stage(job), Phase.RUNNING, progress=Progress(step=step, total=None, values=values))


def told(town: Town, job: Job, query: str = "") -> dict[str, tuple[list[float], list[float | None]]]:
    found = town.owner.read(f"/jobs/{job.number}/values{query}")["results"]
    return {
        f"{one['stage']} {one['attempt']} {each['name']}": (each["steps"], each["values"])
        for one in found
        for each in one["series"]
    }


def test_the_curve_of_a_job_is_there_after_its_end(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, cpus=1)
    for step in range(2 * TAIL + 5):
        tell(agent, job, step, loss=1 / (step + 1), lr=0.1)
    agent.end(stage(job))
    curve = told(town, job)["main 1 loss"]
    assert curve == (list(range(2 * TAIL + 5)), [1 / (step + 1) for step in range(2 * TAIL + 5)])
    row = Curves.objects.get()
    assert (len(row.tail), len(row.kept["loss"]["points"])) == (5, 2 * TAIL), "folded in batches, not at each report"
    assert set(told(town, job, "?name=lr")) == {"main 1 lr"}
    assert town.stranger.get(f"/jobs/{job.number}/values").status_code == 404


def test_only_finite_numbers_with_names_that_can_be_shown_are_kept(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, cpus=1)
    odd = {"word": "x", "x" * 65: 1.0, "tab\t": 1.0, "huge": 10**400, "yes": True, "": 1.0}
    assert curves.numbers({**odd, "nan": math.nan, "inf": math.inf, "fine": 3}) == {"fine": 3.0}
    tell(agent, job, 1, fine=3, word="x")
    tell(agent, job, None, fine=4)
    tell(agent, job, 2**60, fine=5)
    tell(agent, job, 2, **{f"n{i}": float(i) for i in range(60)})
    assert told(town, job)["main 1 fine"] == ([1], [3])
    assert len(told(town, job)) == NAMES


def test_a_line_breaks_where_the_steps_begin_anew(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, cpus=1)
    for step, loss in ((1, 4.0), (2, 3.0), (1, 2.0), (2, 1.0)):
        tell(agent, job, step, loss=loss)
    assert told(town, job)["main 1 loss"] == ([1, 2, 2, 1, 2], [4.0, 3.0, None, 2.0, 1.0])


def test_a_job_that_is_tried_for_ever_keeps_the_newest_curves(town: Town) -> None:
    agent = town.machine()
    town.running(agent, cpus=1)
    first = Attempt.objects.get()
    for number in range(2, PER_JOB + 5):
        at = first.created_at
        again = Attempt.objects.create(stage=first.stage, number=number, created_at=at, ended_at=at)
        curves.append([curves.Reported(again.id, 1, {"loss": 1.0}, 0.0)])
    kept = sorted(Curves.objects.values_list("attempt__number", flat=True))
    assert kept == list(range(5, PER_JOB + 5))
    Attempt.objects.exclude(pk=first.pk).delete()  # no agent ever ran these


@pytest.mark.parametrize("count", [1, 8])
def test_a_report_of_many_stages_is_written_in_one_statement(town: Town, count: int) -> None:
    agent = town.machine()
    for _ in range(count):
        town.job(cpus=1)
    town.cycle()
    agent.start()
    attempts = list(Attempt.objects.values_list("id", flat=True))
    assert len(attempts) == count
    curves.append([curves.Reported(each, 1, {"loss": 2.0}, 0.0) for each in attempts])
    with CaptureQueriesContext(connection) as asked:
        curves.append([curves.Reported(each, 2, {"loss": 1.0}, 0.0) for each in attempts])
    assert len([one for one in asked.captured_queries if "INSERT" in one["sql"]]) == 1
    assert len(asked.captured_queries) <= 2
    assert json.dumps(Curves.objects.first().tail) == '[[1, {"loss": 2.0}], [2, {"loss": 1.0}]]'  # type: ignore[union-attr]
