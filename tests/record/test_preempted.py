"""Who was stopped for somebody else is not thrown out again at once: it waits a while, longer each time."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from controlplane.fleet.models import Device
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Job, Stage
from scheduler.core.model.lifecycle import Cause
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def test_the_pause_grows_with_each_preemption_and_costs_no_retry(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    pauses = []
    for _ in range(3):
        Stage.objects.update(retry_at=None)
        yard.cycle()
        assert agent.start() == ["main"]
        Attempt.objects.filter(ended_at=None).update(stop_why=Cause.PREEMPTED)
        before = timezone.now()
        agent.end(stage(job), stopped=True)
        row = stage(job)
        assert (states(job)["main"], row.failures) == ("PENDING", 0)
        assert row.retry_at is not None
        pauses.append(round((row.retry_at - before).total_seconds()))
        yard.cycle()
        assert agent.start() == []
        assert stage(job).reasons[0]["code"] == "BackoffAfterFailure"
    assert pauses == [5, 10, 20]


def two_stopped_for_a_gang(yard: Yard) -> tuple[Agent, Job, Job, Job]:
    """Return an agent of two GPUs, a job on each with 5 s and 10 min of grace, and the gang they are stopped for."""
    agent = yard.agent("a", cpu("a"), gpu("a", 0), gpu("a", 1))
    quick, slow = (
        yard.submit(devices={"kind": "gpu"}, priority="low", preemption={"grace": grace}) for grace in ("5s", "10m")
    )
    yard.cycle()
    agent.start()
    gang = yard.submit(devices={"kind": "gpu", "count": 2}, priority="urgent", expected="5h", time_limit="20h")
    yard.cycle()
    return agent, quick, slow, gang


def test_what_the_first_victim_frees_is_kept_until_the_last_one_is_gone(yard: Yard) -> None:
    agent, quick, slow, gang = two_stopped_for_a_gang(yard)
    assert {states(job)["main"] for job in (quick, slow)} == {"STOPPING"}
    agent.end(stage(quick), stopped=True)
    rival = yard.submit(devices={"kind": "gpu"}, priority="low")
    freed = Device.objects.get(fenced_for=stage(gang).id)
    told_at = stage(slow).attempts.get().stop_at
    assert freed.fenced_until is not None
    assert told_at is not None
    assert (freed.fenced_until - told_at).total_seconds() > 600, "the other may take ten minutes to save its work"
    yard.cycle()
    assert states(rival)["main"] == "PENDING"
    agent.end(stage(slow), stopped=True)
    yard.cycle()
    assert agent.start() == ["main"]
    assert states(gang)["main"] == "RUNNING"


def test_a_cancel_of_what_is_being_preempted_ends_it_for_good_and_keeps_the_promise(yard: Yard) -> None:
    agent, quick, slow, gang = two_stopped_for_a_gang(yard)
    service.cancel(quick, "ada", "not needed")
    attempt = stage(quick).attempts.get()
    assert (attempt.stop_why, attempt.stop_for) == (Cause.CANCELLED, stage(gang).id)
    agent.end(stage(quick), stopped=True)
    attempt.refresh_from_db()
    assert (states(quick)["job"], stage(quick).cause, attempt.price) == ("CANCELLED", Cause.CANCELLED, None)
    freed = Device.objects.get(fenced_for=stage(gang).id)
    told_at = stage(slow).attempts.get().stop_at
    assert freed.fenced_until is not None
    assert told_at is not None
    assert (freed.fenced_until - told_at).total_seconds() > 600, "the other may take ten minutes to save its work"
    rival = yard.submit(devices={"kind": "gpu"}, priority="low")
    yard.cycle()
    assert states(rival)["main"] == "PENDING"
    agent.end(stage(slow), stopped=True)
    yard.cycle()
    assert agent.start() == ["main"]
    assert (states(gang)["main"], states(quick)["main"]) == ("RUNNING", "CANCELLED")


def test_a_cancel_gives_no_more_time_than_the_stop_under_way(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    with transaction.atomic():
        locked = service.lock([job.id])
        notes = service.stop(list(locked.values()), [stage(job)], Cause.REQUEUED, timezone.now(), grace_s=7.0)
        service.settle(locked.values(), notes, timezone.now())
    service.cancel(job, "ada")
    attempt = stage(job).attempts.get()
    assert (attempt.stop_why, attempt.stop_grace_s) == (Cause.CANCELLED, 7.0)


def test_of_a_wide_victim_only_what_the_other_needs_is_kept_for_it(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a", 0), gpu("a", 1), gpu("a", 2))
    wide = yard.submit(devices={"kind": "gpu", "count": 3}, priority="low")
    yard.cycle()
    agent.start()
    urgent = yard.submit(devices={"kind": "gpu"}, priority="urgent", expected="5h", time_limit="20h")
    yard.cycle()
    agent.end(stage(wide), stopped=True)
    assert Device.objects.filter(fenced_for=stage(urgent).id).count() == 1
