"""Elastic stages live: a resize is a new attempt with another size, told with its reason, and never a failure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agents.protocol import Checkpoint, Exit, Phase
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Device, Node
from controlplane.jobs import record, service
from controlplane.jobs.models import Attempt, Job
from controlplane.scheduling.store import clock
from controlplane.whatif import dry_run
from scheduler.core.model.lifecycle import NodeState
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states

RANGE = {"min": 1, "max": 2}
LATER_S = 61.0


def elastic(yard: Yard, **spec: Any) -> Job:
    given = {"nodes": RANGE, "devices": {"kind": "gpu"}, "expected": "5h", "time_limit": "20h", **spec}
    return yard.submit(**given)


def machine(yard: Yard, name: str) -> Agent:
    return yard.agent(name, cpu(name), gpu(name))


def saves(agent: Agent, job: Job, step: int = 10) -> None:
    """The stage confirms a checkpoint that is shared."""
    agent.set(stage(job), Phase.RUNNING, checkpoints=[Checkpoint(step=step, path=f"/shared/{step}", age_s=0.1)])


def leaves(job: Job, *agents: Agent) -> None:
    """All its parts end as they were asked to."""
    main = stage(job)
    for agent in agents:
        agent.set(main, Phase.ENDED, exit=Exit(code=85, cause="CHECKPOINTED", stopped=True))


def on(job: Job) -> list[str]:
    newest = stage(job).attempts.order_by("-number").first()
    assert newest is not None
    return list(newest.parts.order_by("rank").values_list("node__name", flat=True))


def told(job: Job, kind: str) -> list[str]:
    return list(job.events.filter(kind=kind).values_list("text", flat=True))


def under_way(yard: Yard, agents: list[Agent], **spec: Any) -> Job:
    job = elastic(yard, **spec)
    yard.cycle()
    for agent in agents:
        agent.start()
    assert states(job)["main"] == "RUNNING"
    for agent in agents:
        if agent.node.name == on(job)[0]:
            saves(agent, job)
    return job


def test_it_starts_on_all_that_is_idle_and_every_rank_knows_the_others(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = elastic(yard)
    yard.cycle()
    assert sorted(on(job)) == ["a", "b"]
    specs = [order.spec for agent in (a, b) for order in agent.look()]
    assert sorted(spec.rank for spec in specs if spec) == [0, 1]
    assert all(spec and len(spec.nodes) == 2 and len(spec.gang) == 2 for spec in specs)
    assert "2 of 1 to 2 nodes" in stage(job).attempts.get().why_here


def test_when_a_node_comes_it_is_stopped_to_go_on_with_both(yard: Yard) -> None:
    a = machine(yard, "a")
    job = under_way(yard, [a])
    b = machine(yard, "b")
    early = yard.cycle()
    assert early.plan.resizes == (), "it has just begun"
    assert early.plan.wake_at is not None
    done = yard.cycle(clock() + LATER_S)
    assert done.applied.stopped == (str(stage(job).id),)
    assert states(job)["main"] == "STOPPING"
    (order,) = a.look()
    assert (order.do, order.why) == ("stop", "RESIZE")
    (first,) = told(job, "stop")
    assert first == "main was asked to stop (RESIZE): resized 1 -> 2: b is idle"
    assert yard.cycle().plan.resizes == (), "it was told already"
    leaves(job, a)
    assert states(job)["main"] == "PENDING"
    yard.cycle()
    assert sorted(on(job)) == ["a", "b"]
    assert told(job, "resized") == ["main resized 1 -> 2 nodes of 1-2"]
    for agent in (a, b):
        (wanted,) = agent.look()
        assert wanted.spec is not None
        assert (wanted.spec.resume_from, wanted.spec.resume_step) == ("/shared/10", 10)
    main = stage(job)
    assert (main.failures, main.preemptions, main.retry_at) == (0, 0, None)
    attempt = main.attempts.get(number=1)
    assert (attempt.cause, attempt.detail) == ("RESIZE", "resized 1 -> 2: b is idle")
    assert attempt.price is not None
    assert attempt.price >= 0


def test_a_stage_that_allows_one_attempt_is_resized_as_often_as_it_takes(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b], retry={"max": 1})
    for number in (1, 2, 3):
        attempt = stage(job).attempts.get(number=number)
        service.lock([job.id])
        rows = [stage(job)]
        notes = service.stop([job], rows, record.Cause.RESIZE, attempt.created_at, stop_for=rows[0].id, resized_to=2)
        service.settle([job], notes, attempt.created_at)
        leaves(job, a, b)
        yard.cycle()
        for agent in (a, b):
            agent.start()
        assert states(job)["main"] == "RUNNING"
    assert (stage(job).failures, stage(job).attempt_count) == (0, 4)


def test_it_gives_a_node_back_before_a_cheaper_stage_is_stopped(yard: Yard) -> None:
    a, b, c = (machine(yard, name) for name in "abc")
    job = under_way(yard, [a, b, c])
    low = yard.submit(devices={"kind": "gpu"}, priority="low", expected="5h", time_limit="20h")
    yard.cycle()
    for agent in (a, b, c):
        agent.start()
    urgent = yard.submit(devices={"kind": "gpu"}, priority="high", expected="5h", time_limit="20h")
    done = yard.cycle(clock() + LATER_S)
    assert done.plan.preempts == ()
    assert done.applied.stopped == (str(stage(job).id),)
    number = urgent.number
    assert told(job, "stop") == [f"main was asked to stop (RESIZE): resized 2 -> 1: makes room for #{number} main"]
    victims = {agent.node.name: agent for agent in (a, b, c)}
    held = [victims[name] for name in on(job)]
    kept, given = on(job)
    leaves(job, *held)
    # What it did not give back is kept for itself, what it gave back for the other.
    fenced = dict(Device.objects.exclude(fenced_for=None).values_list("node__name", "fenced_for"))
    assert fenced == {kept: stage(job).id, given: stage(urgent).id}
    yard.cycle()
    assert {*on(urgent), *on(job)} == {kept, given}, "either may have either"
    assert told(job, "resized") == ["main resized 2 -> 1 nodes of 1-2"]
    assert states(low)["main"] == "RUNNING"


def test_who_came_when_it_had_just_begun_is_served_when_it_may_give(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b])
    other = yard.submit(devices={"kind": "gpu"}, expected="5h", time_limit="20h")
    first = yard.cycle()
    assert first.plan.resizes == ()
    assert stage(other).promise is not None
    assert first.plan.wake_at is not None
    assert first.plan.wake_at < clock() + LATER_S
    later = yard.cycle(clock() + LATER_S)
    assert later.applied.stopped == (str(stage(job).id),)
    leaves(job, a, b)
    yard.cycle()
    for agent in (a, b):
        agent.start()
    assert (states(job)["main"], states(other)["main"]) == ("RUNNING", "RUNNING")
    (seen,) = (one for one in yard.cycle().snapshot.running if one.most_nodes)
    assert len(seen.gave_back_at) == 1


def test_a_dry_run_says_who_would_give_back(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b])
    asks = {"devices": {"kind": "gpu"}, "expected": "5h", "time_limit": "20h"}
    spec = {"name": "x", "run": "true", "priority": "high", **asks}
    found = dry_run.dry_run(spec, yard.user)
    (one,) = found["resizes"]
    assert (one["stage"], one["sizes"]) == (f"#{job.number} main", [2, 1])
    assert one["gain"] >= one["price"]
    wide = dry_run.dry_run({**spec, "priority": "medium", "nodes": {"min": 1, "max": 9}}, yard.user)
    assert wide["stages"][0]["expected_s"]["p50"] == 5 * 3600


def test_while_it_stops_nobody_is_promised_its_place(yard: Yard) -> None:
    a = machine(yard, "a")
    job = under_way(yard, [a])
    machine(yard, "b")
    yard.cycle(clock() + LATER_S)
    assert states(job)["main"] == "STOPPING"
    other = yard.submit(devices={"kind": "gpu"}, nodes=2, expected="1m", time_limit="1h")
    yard.cycle()
    planned = stage(other).planned
    assert (
        planned is None or planned["start_at"] > (stage(job).attempts.get().created_at + timedelta(hours=1)).isoformat()
    )


def test_it_leaves_a_node_that_drains_and_comes_back_when_that_is_resumed(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b])
    fleet.drain(b.node, "ada", "new memory")
    yard.cycle()
    assert told(job, "stop") == ["main was asked to stop (RESIZE): resized 2 -> 1: b drains"]
    leaves(job, a, b)
    yard.cycle()
    a.start()
    assert (on(job), states(job)["main"]) == (["a"], "RUNNING")
    saves(a, job, 20)
    fleet.silent_nodes(1e6, 1e6, amnesty=False)
    assert Node.objects.get(name="b").state == NodeState.DRAINED
    fleet.resume(b.node, "ada")
    yard.cycle(clock() + LATER_S)
    leaves(job, a)
    yard.cycle()
    assert sorted(on(job)) == ["a", "b"]
    assert told(job, "resized") == ["main resized 2 -> 1 nodes of 1-2", "main resized 1 -> 2 nodes of 1-2"]
    assert stage(job).failures == 0


def paces(agent: Agent, job: Job, steps: int) -> None:
    """The stage confirms that it did so many steps within half a minute."""
    told = [Checkpoint(step=step, path=f"/shared/{step}", age_s=age) for step, age in ((0, 30.1), (steps, 0.1))]
    agent.set(stage(job), Phase.RUNNING, checkpoints=told)


@pytest.mark.parametrize(("wide", "grows"), [(300, False), (550, True)])
def test_one_that_was_no_faster_on_more_nodes_does_not_grow_again(yard: Yard, wide: int, grows: bool) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b])
    paces({"a": a, "b": b}[on(job)[0]], job, wide)
    fleet.drain(b.node, "ada", "new memory")
    yard.cycle()
    leaves(job, a, b)
    yard.cycle()
    a.start()
    paces(a, job, 300)
    fleet.resume(b.node, "ada")
    later = yard.cycle(clock() + LATER_S)
    (seen,) = later.snapshot.running
    assert bool(later.plan.resizes) == grows
    assert (seen.scaling > 0.5) == grows
    assert yard.store.scaling.expected("default", "job", "main", clock()) == pytest.approx(seen.scaling, abs=0.2)


def test_a_lost_node_leaves_it_on_the_other(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b], on_node_lost="requeue_fast")
    Node.objects.filter(id=b.node.id).update(state=NodeState.LOST)
    assert record.give_up_lost(1.0) == 1
    leaves(job, a)
    yard.cycle()
    assert on(job) == ["a"]
    assert told(job, "resized") == ["main resized 2 -> 1 nodes of 1-2"]
    assert stage(job).attempts.get(number=1).cause == "NODE_FAIL"


def test_a_cancellation_is_stronger_than_a_resize(yard: Yard) -> None:
    a = machine(yard, "a")
    job = under_way(yard, [a])
    machine(yard, "b")
    yard.cycle(clock() + LATER_S)
    service.cancel(job, "ada")
    leaves(job, a)
    assert states(job)["job"] == "CANCELLED"
    attempt = Attempt.objects.get(stage=stage(job))
    assert (attempt.stop_note, attempt.resized_to) == ("", None)


def test_one_that_ends_well_while_it_is_told_has_completed(yard: Yard) -> None:
    a = machine(yard, "a")
    job = under_way(yard, [a])
    machine(yard, "b")
    yard.cycle(clock() + LATER_S)
    a.end(stage(job))
    assert states(job)["job"] == "COMPLETED"


@pytest.mark.parametrize("more", [{"preemption": {"allowed": False}}, {"nodes": 1}, {"nodes": {"min": 1, "max": 1}}])
def test_who_did_not_agree_is_left_alone(yard: Yard, more: dict[str, Any]) -> None:
    a = machine(yard, "a")
    under_way(yard, [a], **more)
    machine(yard, "b")
    assert yard.cycle(clock() + LATER_S).plan.resizes == ()


def test_without_shared_storage_it_stays_where_its_checkpoints_lie(db: None) -> None:
    yard = Yard(storage="")
    a = machine(yard, "a")
    under_way(yard, [a])
    machine(yard, "b")
    assert yard.cycle(clock() + LATER_S).plan.resizes == ()


def test_how_long_it_takes_is_learned_for_its_least_size(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b])
    attempt = stage(job).attempts.get()
    assert attempt.estimate["speed"] > 1.5
    assert attempt.estimate["p50_s"] / attempt.estimate["speed"] < 5 * 3600


def fenced(of: Job) -> set[str]:
    return set(Device.objects.filter(fenced_for=stage(of).id).values_list("node__name", flat=True))


def test_one_that_is_cancelled_while_it_shrinks_keeps_for_the_other_only_what_it_would_have_given(yard: Yard) -> None:
    a, b = machine(yard, "a"), machine(yard, "b")
    job = under_way(yard, [a, b])
    urgent = yard.submit(devices={"kind": "gpu"}, priority="high", expected="5h", time_limit="20h")
    assert yard.cycle(clock() + LATER_S).applied.stopped == (str(stage(job).id),)
    kept, given = on(job)
    service.cancel(job, "ada")
    leaves(job, a, b)
    assert (fenced(urgent), fenced(job)) == ({given}, set())
    rival = yard.submit(devices={"kind": "gpu"}, priority="low")
    yard.cycle()
    assert {*on(urgent), *on(rival)} == {kept, given}, "what is kept for nobody is anybody's"
