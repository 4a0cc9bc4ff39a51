"""Successive halving against the database: what elements report at rungs, who is stopped, and what follows of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.protocol import Exit, Phase, Progress
from controlplane import changes
from controlplane.jobs import arrays, halving, service
from controlplane.jobs.models import Array, Attempt, Job, RungResult
from controlplane.queries import arrays as read
from scheduler.core.model.lifecycle import Cause, IllegalTransition
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
    (went_on,) = jobs[0].events.filter(kind="rung").values_list("text", flat=True)
    assert went_on.startswith("rung 1, step 10: loss nan; goes on")
    why = "stopped early at rung 1, step 10: loss is no finite number, which is never among the best 1/2 of 2"
    assert stage(jobs[1]).attempts.get().stop_note == why
    # The metric comes later: then it is judged.
    reports(agent, jobs[3], 14, loss=3.0)
    yard.cycle()
    assert verdicts(row)[2:] == [(3, 1, "goes_on")]
    why = "rung 1, step 14: loss 3; goes on, among the best 1/2 of 3 (at least as good as 3)"
    assert list(jobs[3].events.filter(kind="rung").values_list("text", flat=True)) == [why]


def test_where_most_have_diverged_any_number_goes_on(yard: Yard) -> None:
    agent, _row, jobs = running(yard, 8, 4)
    for job, loss in zip(jobs, ("nan", "nan", "nan", 3.0), strict=True):
        reports(agent, job, 10, loss=loss)
    yard.cycle()
    why = "rung 1, step 10: loss 3; goes on, since any number is among the best 1/2 of 4"
    assert list(jobs[3].events.filter(kind="rung").values_list("text", flat=True)) == [why]


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
    first, second, last = (one.rung for one in read.elements(row, read.elements_of(row).order_by("array_index")))
    assert first is not None
    assert second is not None
    assert last is not None
    assert (first.verdict, first.among, first.cutoff) == ("goes_on", 1, None)
    assert (second.verdict, second.among, second.cutoff) == ("goes_on", 2, 0.9)
    assert (last.verdict, last.among, last.cutoff, last.value) == ("stopped", 3, 0.9, 0.4)


def test_a_cycle_judges_one_batch_and_reads_nothing_long(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    agent, row, jobs = running(yard, 8, 8)
    for job, loss in zip(jobs, (2, 3, 1, 4, 9, 8, 0, 7), strict=True):
        reports(agent, job, 10, loss=loss)
    asked: list[int] = []
    for at_once, count, is_woken in ((2, 2, True), (4, 4, True), (3, 2, False)):
        monkeypatch.setattr(halving, "AT_ONCE", at_once)
        with (
            CaptureQueriesContext(connection) as queries,
            django_capture_on_commit_callbacks() as after,
        ):
            assert halving.settle() == count
        assert (changes.wake in after[:1]) == is_woken
        texts = [query["sql"] for query in queries]
        assert [text for text in texts if '"spec"' in text or '"request"' in text] == []
        asked.append(len(texts))
    assert asked[0] == asked[1] == asked[2]
    assert [index for index, _rung, verdict in verdicts(row) if verdict == "stopped"] == [1, 3, 4, 5, 7]
    assert halving.settle() == 0


def test_a_value_counts_for_the_step_with_which_it_was_reported(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 2)
    one = stage(jobs[0])
    for step, at in ((9, {}), (10, {"loss": 9}), (25, {"loss": 9}), (25, {"loss": 26}), (25, {"loss": 2**53})):
        agent.set(one, Phase.RUNNING, progress=Progress(step=step, values={"loss": 0.5}, values_at=at))
        assert verdicts(row) == []
    agent.set(one, Phase.RUNNING, progress=Progress(step=25, values={"loss": 0.5}, values_at={"loss": 12}))
    assert RungResult.objects.values_list("rung", "step").get() == (1, 12)
    # The same number again, but of the newest step.
    agent.set(one, Phase.RUNNING, progress=Progress(step=25, values={"loss": 0.5}))
    assert RungResult.objects.values_list("rung", "step").last() == (2, 25)


def test_a_stage_that_went_back_is_not_judged_below_what_it_had_reached(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 2)
    reports(agent, jobs[0], 20, loss=0.1)
    yard.cycle()
    service.requeue(jobs[0], "ada")
    stopped(agent, jobs[0])
    yard.cycle()
    agent.start()
    reports(agent, jobs[0], 12, loss=0.9)
    yard.cycle()
    assert verdicts(row) == [(0, 2, "goes_on")]


def test_what_is_asked_to_stop_for_good_is_judged_no_more(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 4)
    for index, loss in ((0, 0.1), (1, 0.9)):
        reports(agent, jobs[index], 10, loss=loss)
    yard.cycle()
    for step in (20, 21):
        reports(agent, jobs[1], step, loss=0.0)
        yard.cycle()
    reports(agent, jobs[2], 10, loss=0.8)
    service.cancel(jobs[2], "ada")
    reports(agent, jobs[2], 20, loss=0.8)
    yard.cycle()
    # Both are stored before the first is judged.
    reports(agent, jobs[3], 10, loss=0.7)
    reports(agent, jobs[3], 20, loss=0.7)
    yard.cycle()
    assert verdicts(row) == [(0, 1, "goes_on"), (1, 1, "stopped"), (3, 1, "stopped")]
    assert [job.events.filter(kind="early_stop").count() for job in jobs] == [0, 1, 0, 1]
    for job in jobs[1:]:
        stopped(agent, job)
    assert [states(job)["job"] for job in jobs] == ["RUNNING", "CANCELLED", "CANCELLED", "CANCELLED"]
    told = read.detail(row).halving
    assert told is not None
    assert [(rung.reached, rung.stopped) for rung in told.rungs] == [(3, 2), (0, 0)]


def test_what_has_completed_is_compared_with_and_not_stopped(yard: Yard) -> None:
    both = [{"name": "main", "run": "x"}, {"name": "check", "run": "x", "needs": ["main"]}]
    agent, row, jobs = running(yard, 8, 3, stages=both)
    for index, loss in ((0, 0.1), (1, 0.9)):
        reports(agent, jobs[index], 10, loss=loss)
    agent.end(stage(jobs[1]))
    yard.cycle()
    assert states(jobs[1]) == {"job": "RUNNING", "main": "COMPLETED", "check": "STARTING"}
    assert verdicts(row) == [(0, 1, "goes_on"), (1, 1, "goes_on")]
    assert not jobs[1].events.filter(kind__in=["rung", "early_stop"]).exists()
    reports(agent, jobs[2], 10, loss=0.5)
    yard.cycle()
    assert RungResult.objects.values_list("among", "verdict").last() == (3, "stopped")


def test_an_element_counts_once_at_a_rung_however_many_stages_it_has(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 2, stages=[{"name": "main", "run": "x"}, {"name": "beside", "run": "x"}])
    for job, loss in zip(jobs, (0.1, 0.9), strict=True):
        agent.set(stage(job), Phase.RUNNING, progress=Progress(step=20, values={"loss": 0.5}))
        agent.set(stage(job, "beside"), Phase.RUNNING, progress=Progress(step=10, values={"loss": loss}))
    agent.set(stage(jobs[0], "beside"), Phase.RUNNING, progress=Progress(step=20, values={"loss": 0.1}))
    yard.cycle()
    for name in ("main", "beside"):
        agent.set(stage(jobs[1], name), Phase.ENDED, exit=Exit(code=0, stopped=True))
    told = read.detail(row).halving
    assert told is not None
    assert [(rung.reached, rung.stopped) for rung in told.rungs] == [(2, 1), (2, 0)]
    rungs = [one.rung for one in read.elements(row, read.elements_of(row).order_by("array_index"))]
    assert [(rung.rung, rung.verdict) for rung in rungs if rung] == [(2, "goes_on"), (1, "stopped")]


def test_of_an_element_with_several_stages_the_last_that_reports_counts_as_best(yard: Yard) -> None:
    both = [{"name": "main", "run": "x"}, {"name": "check", "run": "x"}]
    agent, row, jobs = running(yard, 8, 3, {"reduction_factor": 3}, stages=both)
    for job, loss, checked in zip(jobs[:2], (0.01, 0.02), (0.7, 0.6), strict=True):
        reports(agent, job, 30, loss=loss, speed=loss)
        agent.set(stage(job, "check"), Phase.RUNNING, progress=Progress(step=10, values={"loss": checked}))
    yard.cycle()
    told = read.detail(row, "loss", "min")
    assert told.halving is not None
    assert told.best is not None
    assert [rung.best for rung in told.halving.rungs] == [0.6, 0.01], "none has reached the second rung but main"
    assert (told.best.value, told.best.index) == (0.6, 1)
    listed = [one.values["loss"] for one in read.elements(row, jobs[:2])]
    assert (listed, min(listed)) == ([0.7, 0.6], told.best.value)
    best = read.detail(row, "speed", "max").best
    assert best is not None
    assert (best.value, best.index) == (0.02, 1), "what only an earlier stage reports is taken from there"


def test_an_early_stop_keeps_what_an_eviction_promised(yard: Yard) -> None:
    agent, _row, jobs = running(yard, 8, 2)
    urgent = stage(yard.submit(cpus=8))
    with transaction.atomic():
        locked = service.lock([jobs[1].id])
        notes = service.stop(
            [*locked.values()], [stage(jobs[1])], Cause.PREEMPTED, timezone.now(), stop_for=urgent.id, grace_s=7.0
        )
        service.settle(locked.values(), notes, timezone.now())
    for job, loss in zip(jobs, (0.1, 0.9), strict=True):
        reports(agent, job, 10, loss=loss)
    yard.cycle()
    attempt = stage(jobs[1]).attempts.get()
    assert (attempt.stop_why, attempt.stop_for, attempt.stop_grace_s) == (Cause.EARLY_STOPPED, urgent.id, 7.0)


def test_an_array_that_is_shown_as_completed_says_so_when_it_cannot_be_held(yard: Yard) -> None:
    agent, row, jobs = running(yard, 8, 2)
    for job, loss in zip(jobs, (0.1, 0.9), strict=True):
        reports(agent, job, 10, loss=loss)
    yard.cycle()
    stopped(agent, jobs[1])
    agent.end(stage(jobs[0]))
    for act in (arrays.hold, arrays.release):
        with pytest.raises(IllegalTransition, match="COMPLETED"):
            act(row, "ada")


def test_of_an_array_without_rungs_none_are_asked_for(yard: Yard) -> None:
    yard.agent("n1")
    row, _jobs = submitted(yard, {"indexes": "0-3"})
    with CaptureQueriesContext(connection) as queries:
        found = read.elements(row, read.elements_of(row))
    assert [one.rung for one in found] == [None] * 4
    assert not any("rungresult" in query["sql"] for query in queries)


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
