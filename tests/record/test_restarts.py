"""What a stage costs to start again is what it took before, where it was seen to; what is assumed of all else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from controlplane.jobs.models import Attempt, Job, Stage
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.types import RESTART_S, Running
from scheduler.core.world import price
from tests.record.yard import Agent, Yard, cpu, gpu, stage


def begins(yard: Yard, agent: Agent, job: Job, took_s: float) -> Running:
    """The next attempt runs, ``took_s`` after it was given its devices; as the engine sees it then."""
    yard.cycle()
    assert agent.start() == ["main"]
    attempt = Attempt.objects.get(stage=stage(job), ended_at=None)
    assert attempt.started_at is not None
    Attempt.objects.filter(id=attempt.id).update(created_at=attempt.started_at - timedelta(seconds=took_s))
    (running,) = yard.store.load(clock()).running
    return running


def stops(agent: Agent, job: Job) -> None:
    """It was stopped for somebody, and its pause is over."""
    Attempt.objects.filter(stage=stage(job), ended_at=None).update(stop_why=Cause.PREEMPTED)
    agent.end(stage(job), stopped=True)
    Stage.objects.update(retry_at=None)


def test_restarts_are_measured_and_the_first_start_is_none(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    job = yard.submit(devices={"kind": "gpu"})
    assert begins(yard, agent, job, 900.0).restart_s == RESTART_S, "it fetched what is here the next time"
    stops(agent, job)
    second = begins(yard, agent, job, 40.0)
    assert second.restart_s == pytest.approx(40.0, abs=0.1)
    assumed = replace(second, restart_s=RESTART_S)
    lost = price.price(second, second.started_at) - price.price(assumed, second.started_at)
    assert lost == pytest.approx(price.weight(500) * price.width(second) * 35.0, abs=0.5)
    stops(agent, job)
    begins(yard, agent, job, 60.0)
    stops(agent, job)
    assert begins(yard, agent, job, 600.0).restart_s == pytest.approx(60.0, abs=0.1), "the middle of three"
    (fresh,) = LiveStore().load(clock()).running
    assert fresh.restart_s == pytest.approx(60.0, abs=0.1), "another process finds the same"


def test_an_attempt_that_never_ran_says_nothing(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    begins(yard, agent, job, 1.0)
    stops(agent, job)
    begins(yard, agent, job, 500.0)
    stops(agent, job)
    Attempt.objects.filter(stage=stage(job), number=2).update(started_at=None)
    yard.store = LiveStore()  # nothing of it is remembered
    assert begins(yard, agent, job, 30.0).restart_s == pytest.approx(30.0, abs=0.1)
