"""A stage that holds devices idle is acted on once, by what was measured, and never without measurements."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.fleet.models import Device, DeviceSample
from controlplane.jobs import service
from controlplane.jobs.models import Event, Job, Stage
from controlplane.notifications.models import Notice
from controlplane.queries.job_rows import shown, whole
from controlplane.usage import idle
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states

MINUTES = 10


@pytest.fixture
def agent(yard: Yard) -> Agent:
    return yard.agent("a", cpu("a"), gpu("a", 0), gpu("a", 1))


def running(yard: Yard, agent: Agent, **policy: Any) -> Job:
    """A job on two GPUs that has run for longer than its window."""
    asked = {"min": "10%", "window": f"{MINUTES}m", **policy}
    job = yard.submit(devices={"kind": "gpu", "count": 2}, utilization_policy=asked)
    yard.cycle()
    agent.start()
    Stage.objects.filter(job=job).update(state_at=timezone.now() - timedelta(minutes=MINUTES + 1))
    return job


def measured(now: datetime, *shares: float | None, minutes: int = MINUTES) -> None:
    """Each GPU was used to one of these shares in each of the last minutes."""
    devices = Device.objects.filter(kind="gpu").order_by("index")
    DeviceSample.objects.bulk_create(
        DeviceSample(device=device, at=now - timedelta(minutes=n, seconds=1), utilisation=share)
        for device, share in zip(devices, shares, strict=True)
        for n in range(minutes)
    )


def kinds(job: Job) -> list[str]:
    return [kind for kind in Event.objects.filter(job=job).values_list("kind", flat=True) if kind == "held_idle"]


def test_an_idle_stage_is_told_once(yard: Yard, agent: Agent) -> None:
    job, now = running(yard, agent), timezone.now()
    measured(now, 0.0, 0.02)
    assert [idle.judge(now), idle.judge(now), idle.judge(now + timedelta(minutes=1))] == [1, 0, 0]
    assert (states(job)["main"], kinds(job)) == ("RUNNING", ["held_idle"])
    assert list(Notice.objects.values_list("user", "event")) == [(job.user_id, "held_idle")]
    (told,) = shown(whole(Job.objects.filter(pk=job.pk)))
    assert told.stages[0].held_idle == (
        "over 10 min they were used to 1.0%, and its utilization_policy asks for at least 10.0%"
    )


@pytest.mark.parametrize(
    ("shares", "minutes"),
    [
        ((0.0, 0.5), MINUTES),  # one of them is used
        ((0.0, None), MINUTES),  # nobody knows of one of them
        ((0.0, 0.0), MINUTES // 2),  # half of the window was measured
    ],
)
def test_there_is_no_verdict_on_what_is_used_or_not_measured(
    yard: Yard, agent: Agent, shares: tuple[float | None, ...], minutes: int
) -> None:
    job, now = running(yard, agent, action="stop"), timezone.now()
    measured(now, *shares, minutes=minutes)
    assert (idle.judge(now), states(job)["main"]) == (0, "RUNNING")


def test_a_stage_that_has_not_run_for_its_window_is_left_alone(yard: Yard, agent: Agent) -> None:
    job, now = running(yard, agent, action="stop"), timezone.now()
    measured(now, 0.0, 0.0)
    Stage.objects.filter(job=job).update(state_at=now - timedelta(minutes=MINUTES - 1))
    assert idle.judge(now) == 0


def test_given_back_it_saves_and_waits_again(yard: Yard, agent: Agent) -> None:
    job, now = running(yard, agent, action="give_back"), timezone.now()
    measured(now, 0.0, 0.0)
    assert idle.judge(now) == 1
    (wanted,) = agent.look()
    assert (wanted.do, wanted.save, states(job)["main"]) == ("stop", True, "STOPPING")
    assert idle.judge(now) == 0
    agent.end(stage(job), stopped=True)
    assert (states(job)["main"], stage(job).failures) == ("PENDING", 0)
    assert "utilization_policy" in stage(job).attempts.get().detail


def test_stopped_it_fails_with_its_own_cause_whatever_may_be_retried(yard: Yard, agent: Agent) -> None:
    job, now = running(yard, agent, action="stop"), timezone.now()
    measured(now, 0.0, 0.0)
    assert idle.judge(now) == 1
    agent.end(stage(job), stopped=True)
    ended = stage(job)
    assert (ended.state, ended.cause) == ("FAILED", "HELD_IDLE")
    assert "utilization_policy" in ended.detail


def test_a_cancellation_wins(yard: Yard, agent: Agent) -> None:
    job, now = running(yard, agent, action="stop"), timezone.now()
    measured(now, 0.0, 0.0)
    service.cancel(job, "ann")
    assert idle.judge(now) == 0
