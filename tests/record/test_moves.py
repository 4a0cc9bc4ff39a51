"""A device that ails is left, live: the stage stops with its checkpoint and goes on elsewhere, which is no failure."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from agents.protocol import Checkpoint, Exit, Phase
from controlplane.jobs.models import Attempt, Job
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def warns(agent: Agent, health: Literal["DEGRADED", "UNHEALTHY"] = "DEGRADED") -> None:
    """Its GPU works still, but tells of row remaps that wait for a reset, or that it is unhealthy."""
    agent.devices = [msgspec.structs.replace(one, health=health) if one.kind == "gpu" else one for one in agent.devices]
    agent.report()


def told(job: Job, kind: str) -> list[str]:
    return list(job.events.filter(kind=kind).values_list("text", flat=True))


def under_way(yard: Yard) -> tuple[Agent, Agent, Job]:
    a, b = yard.agent("a", cpu("a"), gpu("a")), yard.agent("b", cpu("b"), gpu("b"))
    job = yard.submit(devices={"kind": "gpu"}, expected="10h", time_limit="20h")
    yard.cycle()
    here, there = (a, b) if a.look() else (b, a)
    here.start()
    here.set(stage(job), Phase.RUNNING, checkpoints=[Checkpoint(step=10, path="/shared/10", age_s=0.1)])
    return here, there, job


@pytest.mark.parametrize(("health", "word"), [("DEGRADED", "warns"), ("UNHEALTHY", "is unhealthy")])
def test_it_moves_to_the_sound_device_and_resumes(
    yard: Yard, health: Literal["DEGRADED", "UNHEALTHY"], word: str
) -> None:
    here, there, job = under_way(yard)
    assert yard.cycle().plan.moves == ()
    warns(here, health)
    done = yard.cycle()
    assert done.applied.stopped == (str(stage(job).id),)
    (order,) = here.look()
    assert (order.do, order.why) == ("stop", "MOVE")
    why = f"gpu0 of {here.node.name} {word}"
    assert told(job, "stop") == [f"main was asked to stop (MOVE): {why}"]
    assert yard.cycle().plan.moves == (), "it was told already"
    here.set(stage(job), Phase.ENDED, exit=Exit(code=85, cause="CHECKPOINTED", stopped=True))
    assert states(job)["main"] == "PENDING"
    yard.cycle()
    (wanted,) = there.look()
    assert wanted.spec is not None
    assert (wanted.spec.resume_from, wanted.spec.attempt_number) == ("/shared/10", 2)
    main = stage(job)
    assert (main.failures, main.preemptions, main.retry_at) == (0, 0, None)
    first = Attempt.objects.get(stage=main, number=1)
    assert (first.cause, first.detail) == ("MOVE", why)
    assert first.price is not None


def test_it_stays_while_nothing_sound_is_free(yard: Yard) -> None:
    here, there, job = under_way(yard)
    yard.submit(devices={"kind": "gpu"}, expected="10h", time_limit="20h")
    yard.cycle()
    there.start()
    warns(here)
    assert yard.cycle().plan.moves == ()
    assert states(job)["main"] == "RUNNING"
