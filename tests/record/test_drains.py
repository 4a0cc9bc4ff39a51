"""A drain lets what runs finish, save or stop, as it says; what is stopped is queued again and loses no retries."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.fleet import service as fleet
from controlplane.fleet.models import DrainMode, Node
from controlplane.jobs import drains
from controlplane.jobs.models import Attempt, Checkpoint
from controlplane.queries import stopping
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def orders(agent: Agent) -> list[tuple[str, float, bool]]:
    return [(one.do, one.grace_s, one.save) for one in agent.look()]


def test_finish_stops_nothing_until_its_deadline(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(preemption={"grace": "1m"})
    yard.cycle()
    agent.start()
    drains.drain([agent.node], "eve", "fans", mode=DrainMode.FINISH, deadline_s=3600)
    assert drains.stop_due() == 0
    assert [do for do, *_ in orders(agent)] == ["run"]
    assert drains.stop_due(timezone.now() + timedelta(hours=1, seconds=1)) == 1
    assert orders(agent) == [("stop", 60.0, True)]
    assert drains.stop_due(timezone.now() + timedelta(hours=2)) == 0
    agent.end(stage(job), code=0, stopped=True)
    assert states(job)["main"] == "PENDING"
    assert (stage(job).cause, stage(job).failures) == ("REQUEUED", 0)
    assert stage(job).detail == "node a is drained, fans (eve)"


@pytest.mark.parametrize(
    ("mode", "order"), [(DrainMode.SAVE, ("stop", 60.0, True)), (DrainMode.NOW, ("stop", 0.0, False))]
)
def test_save_gives_the_grace_period_and_now_none(yard: Yard, mode: DrainMode, order: tuple[str, float, bool]) -> None:
    agent, other = yard.agent("a"), yard.agent("b")
    job = yard.submit(preemption={"grace": "1m"}, nodes=2)
    yard.cycle()
    agent.start(), other.start()
    drains.drain([agent.node], "eve", "fans", mode=mode)
    # A gang stops on all its nodes.
    assert orders(agent) == orders(other) == [order]
    assert states(job)["main"] == "STOPPING"


def test_now_hurries_what_was_asked_to_save(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit(preemption={"grace": "1m"})
    yard.cycle()
    agent.start()
    drains.drain([agent.node], "eve", "fans", mode=DrainMode.SAVE)
    drains.drain([agent.node], "eve", "smoke", mode=DrainMode.NOW)
    assert orders(agent) == [("stop", 0.0, False)]
    generation = Node.objects.get().generation
    assert drains.stop_due() == 0
    assert Node.objects.get().generation == generation


def test_a_resumed_node_stops_nothing_later(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit()
    yard.cycle()
    agent.start()
    drains.drain([agent.node], "eve", "fans", mode=DrainMode.FINISH, deadline_s=60)
    fleet.resume(agent.node, "eve")
    assert Node.objects.get().drain_stop_at is None
    assert drains.stop_due(timezone.now() + timedelta(hours=1)) == 0


def test_a_preview_counts_what_is_lost_since_the_newest_checkpoint(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a", 0), gpu("a", 1))
    saved = yard.submit(name="saved", devices={"kind": "gpu", "count": 1}, time_limit="2h", preemption={"grace": "1m"})
    never = yard.submit(name="never", devices={"kind": "gpu", "count": 1}, time_limit="3h", preemption={"grace": "2m"})
    yard.cycle()
    agent.start()
    hour = timedelta(hours=1)
    Attempt.objects.update(started_at=timezone.now() - hour)
    attempt = Attempt.objects.get(stage__job=saved)
    Checkpoint.objects.create(stage=attempt.stage, attempt=attempt, step=5, path="/s/5", at=timezone.now() - hour / 4)
    found = stopping.of_drain([agent.node], yard.user)
    assert (found.affects.jobs, found.affects.owners, found.affects.hidden) == (2, ["ada"], 0)
    assert [one.job for one in found.affects.stages] == [never.number, saved.number]
    assert [round(one.lost_device_s, -1) for one in found.affects.stages] == [3600, 900]
    finish, save, now = found.outcomes
    assert (finish.stops, finish.lost_device_s, round(finish.empty_within_s or 0, -1)) == (0, 0, 7200)
    assert (save.stops, round(save.lost_device_s, -1), save.empty_within_s) == (2, 3600, 120)
    assert (now.stops, round(now.lost_device_s, -1), now.empty_within_s) == (2, 4500, 0)
    late = stopping.of_drain([agent.node], yard.user, deadline_s=600).outcomes[0]
    assert (late.stops, late.empty_within_s) == (2, 720)
    assert stopping.of_drain([agent.node], yard.user).version == found.version
    agent.end(stage(never))
    assert stopping.of_drain([agent.node], yard.user).version != found.version
