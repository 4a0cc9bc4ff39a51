"""A gang lives and ends together: every rank is told of all others, and the one that failed first is named."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db.models import F

from agents.protocol import Exit, Phase
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Part
from tests.record.test_nodes import look, silence
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def two(yard: Yard, **spec: object) -> tuple[Agent, Agent, Job]:
    agents = (yard.agent("a"), yard.agent("b"))
    job = yard.submit(nodes=2, **spec)
    yard.cycle()
    for agent in agents:
        agent.start()
    return (*agents, job)


def test_every_rank_is_told_of_all_and_where_they_meet(yard: Yard) -> None:
    agents = [yard.agent(name, cpu(name), gpu(name)) for name in ("a", "b")]
    Node.objects.filter(name="a").update(address="127.0.0.1", hostname="host-a")
    Node.objects.filter(name="b").update(address="10.0.0.7", hostname="host-b")
    yard.submit(nodes=2, devices={"kind": "gpu"}, launcher="per-device")
    yard.cycle()
    specs = [order.spec for agent in agents for order in agent.look()]
    assert all(spec is not None for spec in specs)
    assert {spec.rank for spec in specs if spec} == {0, 1}
    assert len({(spec.master_addr, spec.master_port, tuple(spec.nodes)) for spec in specs if spec}) == 1
    assert specs[0] is not None
    assert [member.name for member in specs[0].gang] == specs[0].nodes
    # Loopback leads nowhere from the other machine.
    assert {member.address for member in specs[0].gang} == {"host-a", "10.0.0.7"}
    assert [len(member.devices) for member in specs[0].gang] == [1, 1]
    assert specs[0].launcher == "per-device"


@pytest.mark.parametrize("victim", [0, 1])
def test_the_rank_that_failed_first_ends_all_and_is_named(yard: Yard, victim: int) -> None:
    a, b, job = two(yard)
    main = stage(job)
    by_rank = sorted((a, b), key=lambda agent: main.attempts.get().parts.get(node=agent.node).rank)
    failing, other = by_rank[victim], by_rank[1 - victim]
    failing.end(main, code=3, detail="ended with exit code 3")
    assert states(job)["main"] == "STOPPING"
    (order,) = other.look()
    assert (order.do, order.why) == ("stop", "EXIT_CODE")
    time.sleep(0.001)
    other.set(main, Phase.ENDED, exit=Exit(code=1, cause="EXIT_CODE", detail="lost its peer", stopped=True))
    assert states(job)["job"] == "FAILED"
    ended = stage(job)
    assert (ended.cause, ended.exit_code) == ("EXIT_CODE", 3)
    assert ended.detail == f"rank {victim} on {failing.node.name}: ended with exit code 3"
    assert f"rank {victim} on {failing.node.name}" in job.events.get(kind="fail").text


def test_a_rank_that_reports_in_the_same_breath_is_not_blamed_for_having_been_stopped(yard: Yard) -> None:
    a, b, job = two(yard)
    main = stage(job)
    b.set(main, Phase.ENDED, exit=Exit(signal=9, cause="SIGNAL", detail="ended by SIGKILL"))
    a.set(main, Phase.ENDED, exit=Exit(signal=15, cause="SIGNAL", detail="ended by SIGTERM", stopped=True))
    assert stage(job).detail.endswith("on b: ended by SIGKILL")


def test_a_gang_that_saved_itself_goes_back_into_the_queue(yard: Yard) -> None:
    a, b, job = two(yard)
    main = stage(job)
    a.end(main, code=85, cause="CHECKPOINTED")
    b.end(main, code=85, cause="CHECKPOINTED", stopped=True)
    assert states(job)["main"] == "PENDING"


def test_how_many_checkpoints_to_keep_reaches_the_node(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit(checkpoint={"keep": 3})
    yard.cycle()
    (order,) = agent.look()
    assert order.spec is not None
    assert order.spec.keep_checkpoints == 3


@pytest.mark.parametrize("is_heard_after", [False, True])
def test_a_rank_that_fails_for_a_vanished_peer_does_not_decide(yard: Yard, is_heard_after: bool) -> None:
    """The peers of a lost node notice first, and fail. The node counts, unless it was still heard after that."""
    a, b, job = two(yard, on_node_lost="requeue", preemption={"grace": 1})
    main = stage(job)
    silence(b.node, 5)
    a.end(main, code=1, detail="connection reset by peer")
    assert states(job)["main"] == "STOPPING"
    if is_heard_after:
        b.report()
        # In this test time is moved, not waited for.
        Part.objects.filter(node=a.node).update(ended_at=F("ended_at") - timedelta(seconds=300))
    for seconds in (50, 200):
        silence(b.node, seconds)
        look()
        look()
    ended = stage(job)
    cause = ended.attempts.get(number=1).cause
    assert (states(job)["main"], cause) == (("FAILED", "EXIT_CODE") if is_heard_after else ("PENDING", "NODE_FAIL"))
