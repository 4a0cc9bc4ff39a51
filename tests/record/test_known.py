"""What the record tells the engine decides: where one of these is taken out of the snapshot, the outcome is another."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agents.protocol import Checkpoint, Exit, Kept, Output, Phase
from controlplane.accounts.models import Project
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Claim, Job, Stage
from controlplane.pools.models import Quota
from controlplane.scheduling.store import LiveStore, clock
from scheduler import profiles
from scheduler.core.model.basis import Basis
from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.types import Plan, Snapshot
from scheduler.core.planning import engine
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states

A = "a" * 64
RAW = {"source": "https://example.org/raw.bin", "sha256": A}


def plan(world: Snapshot, profile: Any = "hybrid") -> Plan:
    chosen = profiles.named(profile) if isinstance(profile, str) else profile
    return engine.plan(world, chosen, clock())


def first(world: Snapshot, profile: Any = "hybrid") -> str:
    """The stage that starts, where there is room for one only."""
    (start,) = plan(world, profile).starts
    return start.stage


def preempted(yard: Yard, agent: Agent, job: Job, ran_s: float) -> None:
    """The job's stage ran for so long and was told to stop; it waits again, and its pause is over."""
    yard.cycle()
    agent.start()
    then = timezone.now() - timedelta(seconds=ran_s)
    Attempt.objects.filter(stage=stage(job)).update(started_at=then, created_at=then, stop_why=Cause.PREEMPTED)
    Claim.objects.filter(part__attempt__stage=stage(job)).update(opened_at=then)
    agent.end(stage(job), stopped=True)
    assert states(job)["main"] == "PENDING"
    Stage.objects.update(retry_at=None)


def test_it_starts_where_its_data_lie(yard: Yard) -> None:
    nodes = {name: yard.agent(name) for name in "abc"}
    fleet.note_kept(nodes["b"].node, Kept([A], "http://127.0.0.1:9", "key"))
    job = yard.submit(inputs=[RAW])
    world = yard.store.load(clock())
    assert [(one.inputs, one.input_bytes) for one in world.waiting] == [((A,), ())], "nobody knows the size of a source"
    (start,) = plan(world).starts
    assert start.placement.nodes == (str(nodes["b"].node.id),)
    blind = replace(world, nodes=tuple(replace(node, cached=()) for node in world.nodes))
    assert plan(blind).starts[0].placement.nodes != start.placement.nodes
    yard.cycle()
    assert nodes["b"].start() == ["main"]
    assert states(job)["main"] == "RUNNING"


def test_data_on_a_shared_disk_pull_nobody(yard: Yard) -> None:
    agent = yard.agent("a")
    flow = [
        {"name": "prep", "run": "true", "outputs": ["tokens"]},
        {"name": "train", "needs": ["prep"], "run": "true", "inputs": [{"from": "prep", "output": "tokens"}]},
    ]
    job = yard.submit(stages=flow)
    yard.cycle()
    agent.start()
    agent.set(stage(job, "prep"), Phase.ENDED, exit=None, outputs=[Output("tokens", A, 12)])
    assert [one.inputs for one in yard.store.load(clock()).waiting] == [()]
    type(yard.pool).objects.update(storage_path="")
    (reader,) = LiveStore().load(clock()).waiting
    assert (reader.inputs, reader.input_bytes) == ((A,), ((A, 12),))


def test_who_has_had_least_starts_first_where_the_profile_says_so(yard: Yard) -> None:
    agent = yard.agent("a")
    had = yard.submit(cpus=2)
    preempted(yard, agent, had, ran_s=4000)
    new = yard.submit(cpus=2)
    least = profiles.load("least", {"policies": {"attained_service": {}, "pack": {}}})
    world = yard.store.load(clock())
    (known,) = (one for one in world.waiting if one.id == str(stage(had).id))
    assert known.attained_device_s == pytest.approx(8000, abs=20)
    assert [(model, pytest.approx(4000, abs=10)) for model, _ in known.received_s] == list(known.received_s)
    assert known.stopped_at == pytest.approx(clock(), abs=10)
    assert first(world, least) == str(stage(new).id)
    forgotten = [replace(one, attained_device_s=0.0, received_s=(), stopped_at=None) for one in world.waiting]
    assert first(replace(world, waiting=tuple(forgotten)), least) == str(stage(had).id)


def test_what_it_had_before_counts_for_one_that_runs_again(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    job = yard.submit(devices={"kind": "gpu"})
    preempted(yard, agent, job, ran_s=600)
    yard.cycle()
    (running,) = yard.store.load(clock()).running
    assert running.attained_device_s == pytest.approx(600, abs=5)
    assert running.received_s == (("NVIDIA H100 80GB HBM3", pytest.approx(600, abs=5)),)
    assert running.submitted_at == pytest.approx(job.submitted_at.timestamp())
    assert [ask.kind for ask in running.alternatives[0].asks] == ["gpu", "cpu"]


def test_what_still_runs_tells_of_those_like_it(yard: Yard) -> None:
    """One of them was short; that others of the burst go on for an hour already makes the next one longer."""
    agent = yard.agent("a", cpu("a", cores=8))
    jobs = [yard.submit(name="tune", time_limit="24h") for _ in range(4)]
    yard.cycle()
    agent.start()
    Attempt.objects.filter(stage=stage(jobs[0])).update(started_at=timezone.now() - timedelta(seconds=60))
    agent.end(stage(jobs[0]))
    yard.submit(name="tune", time_limit="24h", hold=True)
    young = LiveStore().load(clock()).waiting[0].estimate
    Attempt.objects.filter(ended_at=None).update(started_at=timezone.now() - timedelta(hours=1))
    store = LiveStore()
    old = store.load(clock()).waiting[0].estimate
    assert 2 * young.p50_s < old.p50_s
    assert (young.basis, young.runs) == (Basis.OWN_RUNS, 1)
    assert not old.known, "where an hour may become a day nothing useful can be said"
    for job in jobs[1:]:
        agent.end(stage(job), code=1)
    failed = store.load(clock() + 60).waiting[0].estimate
    assert failed.p50_s < old.p50_s, "who failed says nothing of how long one runs"


def test_room_is_kept_for_what_is_usually_asked(yard: Yard) -> None:
    """GPUs with 16 cores each are usual: many cores alone go where that many are left beside the GPU."""
    small, large = yard.agent("a", cpu("a", cores=16), gpu("a")), yard.agent("b", cpu("b", cores=32), gpu("b"))
    spares = profiles.load("spares", {"policies": {"fragmentation": {}}})
    lone = yard.submit(cpus=8)
    world = yard.store.load(clock())
    assert [pool.typical for pool in world.pools] == [()], "one says nothing about those to come"
    assert plan(world, spares).starts[0].placement.nodes == (str(small.node.id),)
    for _ in range(20):
        yard.submit(devices={"kind": "gpu"}, cpus=16, hold=True)
    world = LiveStore().load(clock())
    usual = [(one.kind, one.count, one.milli, one.cores_milli, round(one.share, 2)) for one in world.pools[0].typical]
    assert usual == [("gpu", 1, 1000, 16_000, 0.95), ("cpu", 0, 0, 8_000, 0.05)]
    (start,) = plan(world, spares).starts
    assert (start.stage, start.placement.nodes) == (str(stage(lone).id), (str(large.node.id),))


@pytest.mark.parametrize("is_moment", [False, True])
def test_who_must_be_done_soon_starts_first(yard: Yard, is_moment: bool) -> None:
    yard.agent("a")
    deadline = (timezone.now() + timedelta(minutes=20)).isoformat() if is_moment else "20m"
    patient, urgent = yard.submit(cpus=2, time_limit="10m"), yard.submit(cpus=2, time_limit="10m", deadline=deadline)
    world = yard.store.load(clock())
    assert first(world) == str(stage(urgent).id)
    forgotten = tuple(replace(one, deadline_at=None) for one in world.waiting)
    assert first(replace(world, waiting=forgotten)) == str(stage(patient).id)


@pytest.mark.parametrize("cohort", ["lab", ""])
def test_who_lent_in_a_cohort_takes_it_back(yard: Yard, cohort: str) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a", 0), gpu("a", 1))
    other = Project.objects.create(name="other")
    for project in (yard.project, other):
        Quota.objects.create(project=project, kind="gpu", cohort=cohort, nominal=1, borrowing_limit=1)
    borrowed = [yard.submit(devices={"kind": "gpu"}, time_limit="48h") for _ in range(2)]
    yard.cycle()
    agent.start()
    assert [states(job)["main"] for job in borrowed] == ["RUNNING", "RUNNING"]
    owed = yard.submit(devices={"kind": "gpu"}, project="other")
    yard.cycle()
    ends = sorted(states(job)["main"] for job in borrowed)
    assert ends == (["RUNNING", "STOPPING"] if cohort else ["RUNNING", "RUNNING"])
    if cohort:
        assert stage(owed).reasons[0]["code"] == "WaitingForPreemption"


def test_a_gang_stays_in_one_domain_where_it_says_so(yard: Yard) -> None:
    for name, rack, zone in ("a11", "b21", "c12", "d22"):
        agent = yard.agent(name)
        Node.objects.filter(pk=agent.node.pk).update(labels={"rack": rack, "zone": zone})
    names = {str(node.id): node.name for node in Node.objects.all()}

    def where(**topology: str) -> str:
        job = yard.submit(nodes=2, topology=topology)
        world = yard.store.load(clock())
        mine = replace(world, waiting=tuple(one for one in world.waiting if one.id == str(stage(job).id)))
        return "".join(sorted(names[node] for start in plan(mine).starts for node in start.placement.nodes))

    for mode in ("preferred", "required"):
        assert where(within="rack", mode=mode) in {"ac", "bd"}
        assert where(within="zone", mode=mode) in {"ab", "cd"}
    for name in "cd":
        Node.objects.filter(name=name).update(state="DRAINED")
    assert where(within="rack") == "ab", "preferred: better torn than not at all"
    assert where(within="rack", mode="required") == ""


@pytest.mark.parametrize("saves", [True, False])
def test_who_saves_when_told_to_stop_is_cheap_to_stop(yard: Yard, saves: bool) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a"))
    job = yard.submit(devices={"kind": "gpu"}, expected="11h", time_limit="12h")
    yard.cycle()
    agent.start()
    told_at = timezone.now() - timedelta(seconds=60)
    Attempt.objects.filter(ended_at=None).update(stop_why=Cause.PREEMPTED, stop_at=told_at)
    saved = [Checkpoint(1, "/shared/1", 30.0 if saves else 90.0)]
    agent.set(stage(job), Phase.ENDED, exit=Exit(code=0, stopped=True), checkpoints=saved)
    Stage.objects.update(retry_at=None)
    yard.cycle()
    agent.start()
    Attempt.objects.filter(ended_at=None).update(started_at=timezone.now() - timedelta(hours=10))
    world = yard.store.load(clock())
    assert [one.saves_on_stop for one in world.running] == [saves]
    yard.submit(devices={"kind": "gpu"}, priority="urgent", time_limit="30m")
    yard.cycle()
    assert states(job)["main"] == ("STOPPING" if saves else "RUNNING"), "ten hours of work are too much to lose"
