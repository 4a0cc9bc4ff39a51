"""Before a planned stop a stage is asked to save: by a drain's deadline, a maintenance, the end of an allocation."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from agents.protocol import Checkpoint, Phase
from controlplane.fleet import maintenance
from controlplane.fleet.models import DrainMode
from controlplane.jobs import drains, saves_ahead
from controlplane.jobs.models import Job
from scheduler.predict import saving
from tests.record.yard import Agent, Yard, cpu, gpu, stage

AHEAD = timedelta(seconds=saving.ahead_s(saving.SAVE_S))
SECOND = timedelta(seconds=1)


def started(yard: Yard, *names: str) -> tuple[Job, list[Agent]]:
    agents = [yard.agent(name, cpu(name), gpu(name)) for name in names]
    job = yard.submit(devices={"kind": "gpu"}, nodes=len(names), time_limit="10h")
    yard.cycle()
    for agent in agents:
        agent.start()
    return job, agents


def revs(*agents: Agent) -> list[int]:
    return [wanted.save_rev for agent in agents for wanted in agent.look()]


def test_a_drain_with_a_deadline_asks_once_and_as_late_as_a_save_allows(yard: Yard) -> None:
    job, (agent,) = started(yard, "a")
    assert saves_ahead.ask_due() == 0
    drains.drain([agent.node], "ada", "new memory", mode=DrainMode.FINISH, deadline_s=1800)
    agent.node.refresh_from_db()
    stop_at = agent.node.drain_stop_at
    assert stop_at is not None
    assert saves_ahead.ask_due(stop_at - AHEAD - SECOND) == 0
    assert revs(agent) == [0]
    assert saves_ahead.ask_due(stop_at - AHEAD) == 1
    assert revs(agent) == [1]
    assert saves_ahead.ask_due(stop_at - AHEAD + SECOND) == 0, "once is enough"
    (told,) = job.events.filter(kind="save").values_list("text", flat=True)
    assert told == "main was asked to save now: its nodes are to be free in 75 s"
    assert stage(job).state == "RUNNING"


def test_who_has_just_saved_is_not_asked(yard: Yard) -> None:
    job, (agent,) = started(yard, "a")
    drains.drain([agent.node], "ada", "new memory", mode=DrainMode.FINISH, deadline_s=60)
    agent.set(stage(job), Phase.RUNNING, checkpoints=[Checkpoint(step=1, path="/shared/1", age_s=0.1)])
    assert saves_ahead.ask_due(timezone.now()) == 0
    assert revs(agent) == [0]


def test_a_maintenance_of_one_node_asks_the_whole_gang_and_every_time_anew(yard: Yard) -> None:
    _job, agents = started(yard, "a", "b")
    now = timezone.now()
    starts = now + timedelta(minutes=20)
    hour = timedelta(hours=1)
    maintenance.plan(node=agents[1].node, starts_at=starts, ends_at=starts + hour, reason="x", actor="ada")
    assert saves_ahead.ask_due(now) == 0
    assert saves_ahead.ask_due(starts - AHEAD) == 1
    assert revs(*agents) == [1, 1]
    later = starts + timedelta(minutes=30)
    maintenance.plan(pool=yard.pool, starts_at=later, ends_at=later + hour, reason="y", actor="ada")
    assert saves_ahead.ask_due(later - AHEAD) == 1
    assert revs(*agents) == [2, 2]


def test_who_is_being_stopped_or_waits_is_not_asked(yard: Yard) -> None:
    _job, (agent,) = started(yard, "a")
    drains.drain([agent.node], "ada", "new memory", mode=DrainMode.SAVE)
    waiting = yard.submit(devices={"kind": "gpu"})
    assert saves_ahead.ask_due() == 0
    assert not waiting.events.filter(kind="save").exists()


def test_what_a_save_costs_moves_the_moment(yard: Yard) -> None:
    job, (agent,) = started(yard, "a")
    slow = [Checkpoint(step=i, path=f"/shared/{i}", age_s=3000.0 - i, took_s=120.0) for i in range(3)]
    agent.set(stage(job), Phase.RUNNING, checkpoints=slow)
    drains.drain([agent.node], "ada", "new memory", mode=DrainMode.FINISH, deadline_s=1800)
    agent.node.refresh_from_db()
    stop_at = agent.node.drain_stop_at
    assert stop_at is not None
    assert saves_ahead.ask_due(stop_at - timedelta(seconds=saving.ahead_s(120.0))) == 1
