"""Successive halving against the database: what elements report at rungs, who is stopped, and what follows of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from agents.protocol import Exit, Phase, Progress
from controlplane.jobs import halving, service
from controlplane.jobs.models import Array, Attempt, Job, RungResult
from controlplane.queries import arrays as read
from scheduler.core.model.lifecycle import Cause
from tests.record.test_arrays import active, submitted
from tests.record.yard import Agent, Yard, cpu, stage, states

RULE = {"metric": "loss", "goal": "minimize", "min_steps": 10, "reduction_factor": 2, "rungs": 2}


def sweep(yard: Yard, count: int, rule: dict[str, Any] | None = None, **more: Any) -> tuple[Array, list[Job]]:
    array = {"parameters": {"lr": list(range(1, count + 1))}, "halving": {**RULE, **(rule or {})}}
    return submitted(yard, {**array, **more.pop("array", {})}, **more)


def reports(agent: Agent, job: Job, step: int, **values: Any) -> None:
    """An element reports while it runs."""
    agent.set(stage(job), Phase.RUNNING, progress=Progress(step=step, values=values))


def running(yard: Yard, cores: int, count: int, rule: dict[str, Any] | None = None, **more: Any) -> Any:
    """A node on which elements of a sweep run."""
    agent = yard.agent("a", cpu("a", cores=cores))
    row, jobs = sweep(yard, count, rule, **more)
    yard.cycle()
    agent.start()
    return agent, row, jobs


def verdicts(row: Array) -> list[tuple[int | None, int, str]]:
    results = RungResult.objects.filter(stage__job__array=row).order_by("id")
    return list(results.values_list("stage__job__array_index", "rung", "verdict"))


def stopped(agent: Agent, job: Job) -> None:
    """The element ends as it was asked to."""
    agent.set(stage(job), Phase.ENDED, exit=Exit(code=143, signal=15, cause="SIGNAL", stopped=True))


def test_the_worse_are_stopped_and_the_next_ones_start(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 5, array={"max_parallel": 3})
    assert active(row) == [0, 1, 2]
    for index, loss in enumerate((0.5, 0.9, 0.4)):
        reports(agent, jobs[index], 9, loss=9.0)  # before the rung
        reports(agent, jobs[index], 12, loss=loss)
    yard.cycle()
    assert verdicts(row) == [(0, 1, "goes_on"), (1, 1, "stopped"), (2, 1, "goes_on")]
    assert [stage(job).state for job in jobs] == ["RUNNING", "STOPPING", "RUNNING", "PENDING", "PENDING"]
    assert active(row) == [0, 1, 2]  # it holds its place until its processes have ended
    stopped(agent, jobs[1])
    yard.cycle()
    assert active(row) == [0, 2, 3]
    jobs[1].refresh_from_db()
    assert (jobs[1].state, jobs[1].cause) == ("CANCELLED", "EARLY_STOPPED")
    why = "stopped early at rung 1, step 12: loss 0.9 is not among the best 1/2 of 2; 0.5 was needed"
    assert stage(jobs[1]).detail == why
    assert Attempt.objects.get(stage__job=jobs[1]).cause == Cause.EARLY_STOPPED
    assert list(jobs[1].events.filter(kind="early_stop").values_list("text", flat=True)) == [why]
    assert jobs[0].events.filter(kind="rung").count() == 1
    # A rung is judged once, whatever is reported later.
    reports(agent, jobs[0], 15, loss=9.0)
    yard.cycle()
    assert len(verdicts(row)) == 3


def test_a_report_beyond_a_rung_counts_for_the_highest_that_it_reaches(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 3)
    reports(agent, jobs[0], 500, loss=0.1)
    reports(agent, jobs[1], 10, loss=0.5)
    reports(agent, jobs[1], 20, loss=0.4)
    reports(agent, jobs[2], -5, loss=0.1)
    reports(agent, jobs[2], 2**53, loss=0.1)
    yard.cycle()
    assert verdicts(row) == [(0, 2, "goes_on"), (1, 1, "goes_on"), (1, 2, "stopped"), (2, 2, "goes_on")]


def test_a_diverged_element_is_worse_than_all_numbers_and_other_texts_are_no_values(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 4)
    reports(agent, jobs[0], 10, loss="nan")
    reports(agent, jobs[1], 10, loss="inf")
    reports(agent, jobs[2], 10, loss="low")
    reports(agent, jobs[3], 10, accuracy=0.5)
    yard.cycle()
    assert verdicts(row) == [(0, 1, "goes_on"), (1, 1, "stopped")]
    assert "loss nan" in stage(jobs[1]).attempts.get().stop_note
    # The metric comes later: then it is judged.
    reports(agent, jobs[3], 14, loss=3.0)
    yard.cycle()
    assert verdicts(row)[2:] == [(3, 1, "goes_on")]


def test_without_the_metric_nothing_is_stopped_and_the_array_says_so(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 2)
    for job in jobs:
        reports(agent, job, 1_000, accuracy=0.5)
        agent.end(stage(job))
    yard.cycle()
    assert [states(job)["job"] for job in jobs] == ["COMPLETED", "COMPLETED"]
    told = read.detail(row).halving
    assert told is not None
    assert [(rung.step, rung.reached, rung.best) for rung in told.rungs] == [(10, 0, None), (20, 0, None)]


def test_an_early_stop_is_for_good_also_after_a_preemption_or_on_hold(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 4, retry={"max": 3, "on": ["exit_code", "signal"]})
    reports(agent, jobs[0], 10, loss=0.1)
    yard.cycle()
    for job in jobs[1:]:
        reports(agent, job, 10, loss=0.5)
    service.requeue(jobs[1], "ada")
    agent.end(stage(jobs[2]), code=3)  # it waits for its next try
    agent.end(stage(jobs[3]))  # it has completed: what it reported counts, and nothing of it is stopped
    yard.cycle()
    assert stage(jobs[1]).attempts.get().stop_why == Cause.EARLY_STOPPED
    assert (stage(jobs[2]).state, stage(jobs[2]).cause) == ("CANCELLED", "EARLY_STOPPED")
    assert states(jobs[3])["job"] == "COMPLETED"
    assert verdicts(row)[3] == (3, 1, "goes_on")
    # A cancellation is stronger.
    service.cancel(jobs[1], "ada")
    stopped(agent, jobs[1])
    jobs[1].refresh_from_db()
    assert (jobs[1].state, jobs[1].cause) == ("CANCELLED", "CANCELLED")


def test_what_waits_for_the_array_counts_early_stops_as_no_failure(yard: Yard) -> None:
    agent, row, jobs = running(
        yard, 8, 2, stages=[{"name": "main", "run": "x"}, {"name": "check", "run": "x", "needs": ["main"]}]
    )
    after = yard.submit(depends_on=[{"job": row.number}])
    otherwise = yard.submit(depends_on=[{"job": row.number, "when": "afternotok"}])
    one = yard.submit(depends_on=[{"job": f"{row.number}_1"}])
    reports(agent, jobs[0], 10, loss=0.1)
    reports(agent, jobs[1], 10, loss=0.5)
    yard.cycle()
    stopped(agent, jobs[1])
    assert states(jobs[1]) == {"job": "CANCELLED", "main": "CANCELLED", "check": "CANCELLED"}
    agent.end(stage(jobs[0]))
    yard.cycle()
    agent.start()
    agent.end(stage(jobs[0], "check"))
    yard.cycle()
    assert [states(job)["job"] for job in (after, otherwise, one)] == ["RUNNING", "CANCELLED", "CANCELLED"]
    (told,) = read.shown([row])
    assert (told.state, told.counts, told.stopped_early) == ("COMPLETED", {"CANCELLED": 1, "COMPLETED": 1}, 1)


def test_an_array_with_a_cancelled_element_beside_is_not_completed(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 3)
    reports(agent, jobs[0], 10, loss=0.1)
    reports(agent, jobs[1], 10, loss=0.5)
    yard.cycle()
    stopped(agent, jobs[1])
    agent.end(stage(jobs[0]))
    service.cancel(jobs[2], "ada")
    stopped(agent, jobs[2])
    (told,) = read.shown([row])
    assert (told.state, told.stopped_early) == ("CANCELLED", 1)


def test_the_array_and_its_elements_tell_of_rungs(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 3, {"goal": "maximize"})
    for index, loss in enumerate((0.5, 0.9, 0.4)):
        reports(agent, jobs[index], 10, loss=loss)
    yard.cycle()
    stopped(agent, jobs[2])
    told = read.detail(row).halving
    assert told is not None
    assert (told.metric, told.goal, told.reduction_factor) == ("loss", "maximize", 2)
    assert [(one.rung, one.step, one.reached, one.stopped, one.best) for one in told.rungs] == [
        (1, 10, 3, 1, 0.9), (2, 20, 0, 0, None),
    ]  # fmt: skip
    first, second, last = (one.rung for one in read.elements(read.elements_of(row).order_by("array_index")))
    assert first is not None
    assert second is not None
    assert last is not None
    assert (first.verdict, first.among, first.cutoff) == ("goes_on", 1, None)
    assert (second.verdict, second.among, second.cutoff) == ("goes_on", 2, 0.9)
    assert (last.verdict, last.among, last.cutoff, last.value) == ("stopped", 3, 0.9, 0.4)


@pytest.mark.django_db(transaction=True)
def test_two_schedulers_judge_a_rung_once(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 6)
    for index, job in enumerate(jobs):
        reports(agent, job, 10, loss=float(index))

    def settle_too() -> None:
        halving.settle()
        connection.close()

    others = [threading.Thread(target=settle_too) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    results = RungResult.objects.filter(stage__job__array=row)
    assert sorted(results.values_list("among", flat=True)) == [1, 2, 3, 4, 5, 6]
    assert [job.events.filter(kind__in=["rung", "early_stop"]).count() for job in jobs] == [1] * 6
