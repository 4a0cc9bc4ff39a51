"""How often an attempt is told to save follows from what saves cost and what interrupts the pool; the job file wins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from agents.protocol import Checkpoint, Phase
from controlplane.jobs import models, saves
from controlplane.jobs.models import Attempt, Job, Stage
from controlplane.queries.job_rows import shown, whole
from scheduler.core.model.lifecycle import Cause
from scheduler.predict import saving
from tests.record.yard import Agent, Yard, cpu, gpu, stage

YEAR = timedelta(days=365)


@pytest.fixture(autouse=True)
def _measured_anew() -> Iterator[None]:
    saves.measured.cache_clear()
    yield
    saves.measured.cache_clear()


def begun(yard: Yard, agent: Agent, job: Job) -> float | None:
    """Starts the next attempt; returns the interval that its order tells."""
    saves.measured.cache_clear()
    Stage.objects.update(retry_at=None)
    yard.cycle()
    (told,) = [wanted.spec for wanted in agent.look() if wanted.do == "run" and wanted.spec is not None]
    assert agent.start() == [told.stage]
    assert stage(job, told.stage).attempts.get(ended_at=None).checkpoint_every_s == told.checkpoint_every_s
    return told.checkpoint_every_s


def ended(agent: Agent, job: Job, cause: Cause, ran: timedelta = timedelta(hours=1)) -> None:
    """The attempt ends by ``cause`` after it ran so long."""
    live = Attempt.objects.get(stage=stage(job), ended_at=None)
    agent.end(stage(job), code=1, cause=str(cause))
    Attempt.objects.filter(id=live.id).update(started_at=timezone.now() - ran)


def why(job: Job) -> str:
    (told,) = shown(whole(Job.objects.filter(id=job.id)))
    return told.stages[0].checkpoint_every_why


def test_a_young_pool_goes_by_what_is_assumed(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    job = yard.submit(devices={"kind": "gpu"})
    expected = saving.every_s(saving.SAVE_S, saving.between_s(saving.NONE_SEEN, 1, 1))
    assert begun(yard, agent, job) == round(expected)
    assert why(job).startswith("no save was measured, 30 s are assumed; what it holds is interrupted about every ")


def test_the_job_file_wins(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(checkpoint={"interval_hint": "15m"})
    assert begun(yard, agent, job) == 900.0
    assert why(job) == "the job file names it"


def test_what_saves_took_counts_the_stages_own_before_those_of_its_like(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(retry={"max": 9, "on": ["device_error"]})
    assumed = begun(yard, agent, job)
    checkpoints = [Checkpoint(step=n, path=f"/c/{n}", took_s=took) for n, took in enumerate((2.0, 3.0, 90.0))]
    agent.set(stage(job), Phase.RUNNING, checkpoints=[*checkpoints, Checkpoint(step=9, path="/c/9")])
    assert sorted(models.Checkpoint.objects.values_list("took_s", flat=True), key=str) == [2.0, 3.0, 90.0, None]
    ended(agent, job, Cause.DEVICE_ERROR)
    own = begun(yard, agent, job)
    assert own is not None
    assert assumed is not None
    assert own < assumed / 2
    assert why(job).startswith("its saves took 3 s")
    ended(agent, job, Cause.EXIT_CODE)
    like = yard.submit()
    begun(yard, agent, like)
    assert why(like).startswith("saves of stages like it took 3 s")


@pytest.mark.parametrize(
    ("cause", "stop"),
    [(Cause.NODE_FAIL, False), (Cause.DEVICE_ERROR, False), (Cause.PREEMPTED, True)],
)
def test_faults_and_stops_shorten_the_interval(yard: Yard, cause: Cause, stop: bool) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    word = [str(cause).lower()] if cause in saves.NODE_FAULTS or cause == Cause.DEVICE_ERROR else []
    job = yard.submit(devices={"kind": "gpu"}, retry={"max": 99, "on": word} if word else None)
    intervals = []
    for _ in range(4):
        intervals.append(begun(yard, agent, job))
        if stop:
            Attempt.objects.filter(stage=stage(job), ended_at=None).update(stop_why=cause, stop_at=timezone.now())
        ended(agent, job, cause)
    assert intervals == sorted(set(intervals), reverse=True)


def test_a_stop_before_which_the_stage_saved_interrupts_nothing(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    first = begun(yard, agent, job)
    live = Attempt.objects.get(stage=stage(job), ended_at=None)
    Attempt.objects.filter(id=live.id).update(stop_why=Cause.PREEMPTED, stop_at=timezone.now() - timedelta(seconds=9))
    agent.set(stage(job), Phase.RUNNING, checkpoints=[Checkpoint(step=1, path="/c/1", age_s=1.0)])
    ended(agent, job, Cause.PREEMPTED, ran=timedelta(seconds=0))
    assert begun(yard, agent, job) == first
    models.Checkpoint.objects.all().delete()
    ended(agent, job, Cause.PREEMPTED, ran=timedelta(seconds=0))
    third = begun(yard, agent, job)
    assert first is not None
    assert third is not None
    assert third < first


def test_time_without_a_fault_makes_it_longer(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    calm = yard.submit(devices={"kind": "gpu"})
    first = begun(yard, agent, calm)
    ended(agent, calm, Cause.EXIT_CODE, ran=YEAR)
    second = begun(yard, agent, yard.submit(devices={"kind": "gpu"}))
    assert first is not None
    assert second is not None
    assert second > first


def test_exposure_is_the_time_of_nodes_of_accelerators_and_of_attempts(yard: Yard) -> None:
    agents = [yard.agent(name, cpu(name), *(gpu(name, n) for n in range(3))) for name in "ab"]
    job = yard.submit(nodes=2, devices={"kind": "gpu", "count": 3})
    yard.cycle()
    assert [agent.start() for agent in agents] == [["main"]] * 2
    Attempt.objects.update(started_at=timezone.now() - timedelta(hours=10))
    saves.measured.cache_clear()
    (seen,) = saves.measured(int(timezone.now().timestamp()) // saves.REREAD_S).interruptions.values()
    assert seen.attempt_s == pytest.approx(36_000.0, abs=2 * saves.REREAD_S)
    for agent in agents:
        agent.end(stage(job), code=1, cause=str(Cause.NODE_REBOOT))
    Attempt.objects.update(started_at=F("ended_at") - timedelta(hours=1))
    saves.measured.cache_clear()
    (seen,) = saves.measured(int(timezone.now().timestamp()) // saves.REREAD_S).interruptions.values()
    assert seen == saving.Interruptions(1, 2 * 3600.0, 0, 6 * 3600.0, 0, 3600.0)


def test_a_save_cost_out_of_range_is_bounded(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    begun(yard, agent, job)
    agent.set(
        stage(job),
        Phase.RUNNING,
        checkpoints=[Checkpoint(step=1, path="/c/1", took_s=-5.0), Checkpoint(step=2, path="/c/2", took_s=1e15)],
    )
    assert sorted(models.Checkpoint.objects.values_list("took_s", flat=True)) == [0.0, 366 * 86_400.0]
