"""The life of stages, from submit to the end, through the real services and a real database."""

import pytest
from django.db import IntegrityError, InternalError, transaction

from agents.protocol import Checkpoint, Exit, Here, Phase, Progress
from controlplane.fleet.models import Device
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Claim, Event, Job, Stage
from controlplane.jobs.spec import InvalidSpec
from controlplane.scheduling.store import clock
from scheduler import profiles
from scheduler.core.model.lifecycle import IllegalTransition
from scheduler.core.planning import engine
from tests.record.yard import Yard, cpu, gpu, stage, states

TWO = [{"name": "prep", "run": "true"}, {"name": "train", "kind": "train", "needs": ["prep"], "run": "true"}]


def test_two_stages_run_one_after_the_other(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(stages=TWO)
    assert states(job) == {"job": "PENDING", "prep": "PENDING", "train": "PENDING"}
    yard.cycle()
    assert agent.start() == ["prep"]
    assert states(job) == {"job": "RUNNING", "prep": "RUNNING", "train": "PENDING"}
    assert stage(job, "train").reasons[0]["code"] == "DependencyPending"
    agent.end(stage(job, "prep"))
    yard.cycle()
    assert agent.start() == ["train"]
    agent.end(stage(job, "train"))
    assert states(job) == {"job": "COMPLETED", "prep": "COMPLETED", "train": "COMPLETED"}
    kinds = list(job.events.values_list("kind", flat=True))
    first = ["submitted", "placed", "started", "completed", "eligible"]
    assert kinds == [*first, "placed", "started", "completed", "completed"]
    assert not Claim.objects.filter(closed_at=None).exists()


def test_the_image_of_the_chosen_way_travels_to_the_agent(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit(image="torch:2.9", devices={"any_of": [{"kind": "cpu", "image": "slim:1"}]})
    yard.cycle()
    (wanted,) = agent.look()
    assert wanted.spec is not None
    assert wanted.spec.image == "slim:1"


def test_a_stage_that_fails_takes_with_it_what_needs_it(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(stages=[*TWO, {"name": "infer", "needs": ["train"], "run": "true"}])
    yard.cycle()
    agent.start()
    agent.end(stage(job, "prep"), code=3)
    assert states(job) == {"job": "FAILED", "prep": "FAILED", "train": "CANCELLED", "infer": "CANCELLED"}
    assert (stage(job, "prep").cause, stage(job, "prep").exit_code) == ("EXIT_CODE", 3)
    assert stage(job, "infer").cause == "DEPENDENCY"
    job.refresh_from_db()
    assert job.cause == "EXIT_CODE"


def test_a_report_twice_late_or_stale_changes_nothing(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    part = stage(job).attempts.get().parts.get()
    agent.end(stage(job))
    before = Event.objects.count()
    for phase, epoch in ((Phase.RUNNING, 1), (Phase.ENDED, 1), (Phase.STARTING, 7)):
        agent.here[str(part.id)] = agent_here = Here(
            part=str(part.id), attempt=str(part.attempt_id), epoch=epoch, phase=phase
        )
        answer = agent.report()
        agent.here.clear()
        assert (answer.refused != []) == (agent_here.epoch == 7)
    assert Event.objects.count() == before
    assert states(job)["job"] == "COMPLETED"


def test_what_the_server_does_not_know_is_named_and_not_touched(yard: Yard) -> None:

    agent = yard.agent("a")
    stranger = "00000000-0000-4000-8000-000000000000"
    agent.here[stranger] = Here(part=stranger, attempt=stranger, epoch=1, phase=Phase.RUNNING)
    answer = agent.report()
    assert answer.unknown == [stranger]
    assert answer.leftovers == []


def test_a_node_sees_and_ends_only_its_own_parts(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    job = yard.submit()
    yard.cycle()
    owner, other = (a, b) if a.start() else (b, a)
    if owner is b:
        owner.start()
    part = stage(job).attempts.get().parts.get()

    other.here[str(part.id)] = Here(
        part=str(part.id), attempt=str(part.attempt_id), epoch=1, phase=Phase.ENDED, exit=Exit(code=0)
    )
    answer = other.report()
    assert answer.unknown == [str(part.id)]
    assert states(job)["job"] == "RUNNING"


def test_cancel_ends_waiting_stages_at_once_and_running_ones_after_their_stop(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(stages=TWO)
    yard.cycle()
    agent.start()
    service.cancel(job, "ada", "enough")
    service.cancel(job, "ada", "enough")
    assert states(job) == {"job": "STOPPING", "prep": "STOPPING", "train": "CANCELLED"}
    (order,) = agent.look()
    assert (order.do, order.why, order.save) == ("stop", "CANCELLED", False)
    agent.end(stage(job, "prep"), stopped=True)
    assert states(job) == {"job": "CANCELLED", "prep": "CANCELLED", "train": "CANCELLED"}
    yard.cycle()
    assert agent.look() == []


def test_a_stage_that_finished_before_its_stop_arrived_is_completed(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    service.cancel(job, "ada")
    agent.end(stage(job))
    assert states(job)["job"] == "COMPLETED"


def test_hold_and_release(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(hold=True)
    yard.cycle()
    assert agent.start() == []
    assert stage(job).reasons[0]["code"] == "Held"
    service.release(job, "ada")
    yard.cycle()
    assert agent.start() == ["main"]
    with pytest.raises(IllegalTransition):
        service.hold(job, "ada")


def test_checkpoints_and_progress_are_kept_and_the_next_attempt_resumes(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit(retry={"max": 3, "on": ["signal"], "backoff": 0})
    yard.cycle()
    agent.start()
    progress = Progress(step=7, total=10, values={"loss": 1.25})
    checkpoints = [Checkpoint(step=5, path="/c/5"), Checkpoint(step=7, path="/c/7")]
    agent.set(stage(job), Phase.RUNNING, progress=progress, checkpoints=checkpoints)
    agent.set(stage(job), Phase.RUNNING, progress=progress, checkpoints=checkpoints)
    assert stage(job).values == {"loss": 1.25}
    assert stage(job).checkpoints.count() == 2
    agent.set(stage(job), Phase.ENDED, exit=Exit(signal=9, cause="SIGNAL"))
    assert states(job) == {"job": "PENDING", "main": "PENDING"}
    yard.cycle()
    (order,) = agent.look()
    assert order.spec is not None
    assert (order.spec.attempt_number, order.spec.resume_from) == (2, "/c/7")
    assert order.epoch == 2


def test_the_urgent_takes_the_device_and_the_other_resumes(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=4), gpu("a"))
    slow = yard.submit(name="slow", devices={"kind": "gpu"}, time_limit="20h", priority="low")
    yard.cycle()
    agent.start()
    checkpoint = [Checkpoint(step=3, path="/c/3")]
    agent.set(stage(slow), Phase.RUNNING, checkpoints=checkpoint)
    urgent = yard.submit(name="urgent", devices={"kind": "gpu"}, time_limit="1h", priority="urgent")
    yard.cycle()
    assert states(slow)["main"] == "STOPPING"
    assert stage(urgent).reasons[0]["code"] == "WaitingForPreemption"
    (order,) = [order for order in agent.look() if order.do == "stop"]
    assert (order.why, order.save) == ("PREEMPTED", True)
    agent.end(stage(slow), stopped=True)
    assert states(slow) == {"job": "PENDING", "main": "PENDING"}
    attempt = Attempt.objects.get(stage=stage(slow))
    assert attempt.cause == "PREEMPTED"
    assert attempt.price is not None
    yard.cycle()
    assert agent.start() == ["main"]
    assert states(urgent)["main"] == "RUNNING"
    assert states(slow)["main"] == "PENDING"
    agent.end(stage(urgent))
    Stage.objects.filter(job=slow).update(retry_at=None)
    yard.cycle()
    (order,) = agent.look()
    assert order.spec is not None
    assert order.spec.resume_from == "/c/3"


def test_the_stage_that_can_never_fit_is_refused_at_submit(yard: Yard) -> None:
    yard.agent("a")
    with pytest.raises(InvalidSpec) as refused:
        yard.submit(devices={"kind": "gpu", "count": 2})
    assert refused.value.errors[0].pointer == "/stages/0/devices"
    assert "2 gpu" in str(refused.value)
    assert not Job.objects.exists()


def test_what_has_just_come_can_be_asked_for_at_once(yard: Yard) -> None:
    agent = yard.agent("a")
    with pytest.raises(InvalidSpec, match="can never start"):
        yard.submit(devices={"kind": "gpu"})
    agent.devices.append(gpu("a"))
    agent.report()
    assert states(yard.submit(devices={"kind": "gpu"}))["main"] == "PENDING"


def test_many_submits_are_one_transaction_and_their_numbers_differ(yard: Yard) -> None:
    yard.agent("a")
    jobs = service.submit_many([{"name": f"j{i}", "run": "true"} for i in range(50)], yard.user)
    assert len({job.number for job in jobs}) == 50
    with pytest.raises(InvalidSpec):
        service.submit_many([{"name": "ok", "run": "true"}, {"name": "bad"}], yard.user)
    assert Job.objects.count() == 50


def test_the_database_refuses_what_must_not_be(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    live = stage(job).attempts.get()
    claim = Claim.objects.get()
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.create(stage=stage(job), number=2, created_at=live.created_at)
    part = live.parts.get()
    other = live.parts.create(node=part.node, rank=1, phase=90, ended_at=live.created_at)
    with pytest.raises(IntegrityError), transaction.atomic():
        Claim.objects.create(part=other, device=claim.device, milli=1001, opened_at=live.created_at)
    other.delete()
    agent.start()
    agent.end(stage(job))
    with pytest.raises((IntegrityError, InternalError)), transaction.atomic():
        Stage.objects.filter(job=job).update(state="PENDING")
    with pytest.raises((IntegrityError, InternalError)), transaction.atomic():
        Event.objects.filter(job=job).update(text="it never happened")
    with pytest.raises((IntegrityError, InternalError)), transaction.atomic():
        Claim.objects.filter(id=claim.id).update(closed_at=None)


def test_a_placement_that_the_database_refuses_is_skipped_and_no_other(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    jobs = [yard.submit(cpus=2), yard.submit(cpus=2)]
    now = clock()
    snapshot = yard.store.load(now)
    plan = engine.plan(snapshot, profiles.named("hybrid"), now)
    assert len(plan.starts) == 2
    Device.objects.filter(uuid="cpu-b").update(capacity_milli=500)
    applied = yard.store.apply(snapshot, plan, now)
    assert (len(applied.started), len(applied.skipped)) == (1, 1)
    assert a.start() == ["main"]
    assert b.start() == []
    assert sorted(states(job)["main"] for job in jobs) == ["PENDING", "RUNNING"]


def test_promises_are_written_first_and_then_who_came_last_is_told(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has just begun has all of a long queue to tell; who looks is who has just submitted. A promise
    that is not written is made anew in the next cycle."""
    from controlplane.scheduling import waiting_reasons

    monkeypatch.setattr(waiting_reasons, "WRITES_PER_CYCLE", 4)
    yard.agent("a")
    jobs = [yard.submit(cpus=2) for _ in range(7)][1:]
    promised = {one.stage for one in yard.cycle().plan.waits if one.planned}
    assert promised
    assert len(promised) < 4
    told = [stage(job) for job in jobs if stage(job).reasons]
    assert promised | {str(stage(jobs[-1]).id)} <= {str(one.id) for one in told}
    assert {str(one.id) for one in told if one.promise} == promised
    yard.cycle()
    yard.cycle()
    assert all(stage(job).reasons for job in jobs)
