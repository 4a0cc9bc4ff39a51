"""What runs on a node and the record does not know goes on until a person ends it, and nobody gets its devices."""

from __future__ import annotations

import uuid

import pytest

from agents.protocol import Exit, Here, Phase
from controlplane.fleet import survivors
from controlplane.fleet.models import Device, Node
from controlplane.fleet.service import NodeRefused
from scheduler.core.model.lifecycle import Health
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def survive(agent: Agent, *devices: str) -> str:
    """The agent runs a part of which the record has no row."""
    part = str(uuid.uuid4())
    agent.here[part] = Here(
        part=part, attempt=str(uuid.uuid4()), epoch=3, phase=Phase.RUNNING, pid=77, devices=list(devices)
    )
    agent.report()
    return part


def health(agent: Agent) -> dict[str, str]:
    return dict(Device.objects.filter(node=agent.node).values_list("uuid", "health"))


def test_its_accelerator_is_given_to_nobody_and_its_cores_are_shared(yard: Yard) -> None:
    card, other, host = gpu("a", 0), gpu("a", 1), cpu("a", 32, 64)
    agent = yard.agent("a", host, card, other)
    part = survive(agent, card.uuid, host.uuid)
    found = health(agent)
    assert found == {host.uuid: Health.OK, card.uuid: Health.QUARANTINED, other.uuid: Health.OK}
    assert part in Device.objects.get(uuid=card.uuid).health_reason
    jobs = [yard.submit(devices={"kind": "gpu"}) for _ in range(2)]
    yard.cycle()
    assert [states(job)["main"] for job in jobs] == ["STARTING", "PENDING"]
    agent.report()
    assert health(agent)[card.uuid] == Health.QUARANTINED, "told again, it stays so"
    assert agent.report().leftovers == [], "nobody ends it unasked"
    del agent.here[part]
    agent.report()
    assert health(agent)[card.uuid] == Health.OK
    yard.cycle()
    assert states(jobs[1])["main"] == "STARTING"


def test_a_person_stops_it_and_has_it_forgotten(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    part = survive(agent, gpu("a").uuid)
    with pytest.raises(NodeRefused, match="reason"):
        survivors.stop(part, "ada", " ")
    with pytest.raises(NodeRefused, match="still runs"):
        survivors.forget(part, "ada", "")
    with pytest.raises(NodeRefused, match="no such survivor"):
        survivors.stop("gone", "ada", "x")
    survivors.stop(part, "ada", "submitted anew")
    (order,) = agent.report().leftovers
    assert (order.part, order.epoch, order.do, order.save) == (part, 3, "stop", True)
    held = agent.here[part]
    agent.here[part] = Here(part=part, attempt=held.attempt, epoch=3, phase=Phase.ENDED, exit=Exit(code=0))
    answer = agent.report()
    assert (answer.leftovers, answer.forget) == ([], [])
    assert health(agent)[gpu("a").uuid] == Health.OK
    assert Node.objects.get().survivors[part]["stopped_by"] == "submitted anew (ada)", "it stays listed"
    with pytest.raises(NodeRefused, match="ended already"):
        survivors.stop(part, "ada", "again")
    survivors.forget(part, "ada", "")
    assert agent.report().forget == [part]
    agent.report()
    assert Node.objects.get().survivors == {}


def test_what_the_record_knows_is_no_survivor(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    agent.report()
    assert Node.objects.get().survivors == {}
    agent.end(stage(job))
    assert Node.objects.get().survivors == {}
