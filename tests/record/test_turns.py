"""A pool whose profile rotates: stages take turns on its devices, by a stop with a checkpoint and a new start."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from agents.protocol import Checkpoint, Phase
from controlplane.fleet.models import Device
from controlplane.jobs.models import Attempt, Claim, Job
from controlplane.pools.models import Pool
from controlplane.scheduling.store import clock
from scheduler import profiles
from scheduler.core.planning import engine
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states

GPU = {"kind": "gpu"}


@pytest.fixture
def turning(yard: Yard) -> Yard:
    Pool.objects.update(profile="turns")
    return yard


def ages(job: Job, by_s: float) -> None:
    """The job's stage has run for that much longer."""
    for row in Attempt.objects.filter(stage=stage(job), ended_at=None):
        Attempt.objects.filter(pk=row.pk).update(started_at=row.started_at - timedelta(seconds=by_s))
    Claim.objects.filter(part__attempt__stage=stage(job)).update(opened_at=timezone.now() - timedelta(seconds=by_s))


def saves(agent: Agent, job: Job) -> None:
    agent.set(stage(job), Phase.RUNNING, checkpoints=[Checkpoint(step=1, path="/shared/1")])


def displaced(yard: Yard, agent: Agent) -> tuple[Job, Job]:
    """A stage that has had much is told to stop for one that has had nothing."""
    long = yard.submit(name="long", devices=GPU, time_limit="48h")
    yard.cycle()
    agent.start()
    ages(long, 7200)
    saves(agent, long)
    short = yard.submit(name="short", devices=GPU, time_limit="10m")
    yard.cycle()
    assert (states(long)["main"], states(short)["main"]) == ("STOPPING", "PENDING")
    assert stage(short).reasons[0]["code"] == "WaitingForPreemption"
    return long, short


def test_who_has_had_least_comes_first_and_the_other_goes_on_afterwards(turning: Yard) -> None:
    agent = turning.agent("a", cpu("a"), gpu("a"))
    long, short = displaced(turning, agent)
    (order,) = agent.look()
    assert (order.do, order.why) == ("stop", "PREEMPTED")
    agent.end(stage(long), stopped=True)
    row = stage(long)
    assert (row.state, row.retry_at, row.failures) == ("PENDING", None, 0), "it pauses no longer than its turn takes"
    turning.cycle()
    assert agent.start() == ["main"]
    assert (states(long)["main"], states(short)["main"]) == ("PENDING", "RUNNING")
    agent.end(stage(short))
    turning.cycle()
    assert agent.start() == ["main"]
    assert states(long)["main"] == "RUNNING"
    assert stage(long).attempts.count() == 2


def test_while_one_stops_no_other_is_told_to(turning: Yard) -> None:
    agent = turning.agent("a", cpu("a"), gpu("a", 0), gpu("a", 1))
    going = [turning.submit(devices=GPU, time_limit="48h") for _ in range(2)]
    turning.cycle()
    agent.start()
    for job in going:
        ages(job, 7200)
        saves(agent, job)
    short = turning.submit(devices=GPU, time_limit="10m")
    for _ in range(3):
        turning.cycle()
    assert sorted(states(job)["main"] for job in (*going, short)) == ["PENDING", "RUNNING", "STOPPING"]


def test_what_was_freed_is_kept_for_whom_it_was_freed(turning: Yard) -> None:
    agent = turning.agent("a", cpu("a"), gpu("a"))
    long, short = displaced(turning, agent)
    later = turning.submit(name="later", devices=GPU, time_limit="10m", priority="urgent")
    agent.end(stage(long), stopped=True)
    assert Device.objects.get(kind="gpu").fenced_for == stage(short).id
    turning.cycle()
    assert agent.start() == ["main"]
    assert (states(short)["main"], states(later)["main"]) == ("RUNNING", "PENDING")


def test_who_has_just_begun_is_left_alone(turning: Yard) -> None:
    agent = turning.agent("a", cpu("a"), gpu("a"))
    first = turning.submit(devices=GPU, time_limit="48h")
    turning.cycle()
    agent.start()
    turning.submit(devices=GPU, time_limit="10m")
    turning.cycle()
    assert states(first)["main"] == "RUNNING"


def test_a_pool_beside_it_promises_and_stops_nobody_for_who_needs_as_long(turning: Yard) -> None:
    quiet = Pool.objects.create(name="quiet", profile="hybrid")
    agent = turning.agent("a", cpu("a"), gpu("a"))
    agent.node.pools.set([quiet])
    long = turning.submit(name="long", devices=GPU, time_limit="48h", pool="quiet")
    turning.cycle()
    agent.start()
    ages(long, 7200)
    saves(agent, long)
    other = turning.submit(name="other", devices=GPU, time_limit="48h", pool="quiet")
    turning.cycle()
    assert states(long)["main"] == "RUNNING"
    assert stage(other).planned is not None
    turning.submit(name="short", devices=GPU, time_limit="10m", pool="quiet")
    turning.cycle()
    assert states(long)["main"] == "STOPPING"


def test_who_is_displaced_may_go_on_elsewhere_because_it_is_known_what_it_asks(turning: Yard) -> None:
    agent = turning.agent("a", cpu("a", cores=4), gpu("a", 0), gpu("a", 1))
    long = turning.submit(devices=GPU, time_limit="48h")
    turning.cycle()
    agent.start()
    ages(long, 7200)
    saves(agent, long)
    turning.agent("b", cpu("b", cores=4), gpu("b"))
    both = turning.submit(devices={**GPU, "count": 2}, time_limit="10m")
    seen = turning.store.load(clock())
    plan = engine.plan(seen, profiles.named("turns"), clock())
    assert [(one.victim, one.stage) for one in plan.preempts] == [(str(stage(long).id), str(stage(both).id))]
    names = {node.id: node.name for node in seen.nodes}
    assert {one.stage: names[one.placement.nodes[0]] for one in plan.swaps} == {
        str(stage(long).id): "b",
        str(stage(both).id): "a",
    }
    blind = replace(seen, running=tuple(replace(one, alternatives=()) for one in seen.running))
    swaps = engine.plan(blind, profiles.named("turns"), clock()).swaps
    assert str(stage(long).id) not in {one.stage for one in swaps}
