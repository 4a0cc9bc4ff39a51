"""Who was stopped for somebody else is not thrown out again at once: it waits a while, longer each time."""

from __future__ import annotations

from django.utils import timezone

from controlplane.jobs.models import Attempt, Stage
from scheduler.core.lifecycle import Cause
from tests.record.yard import Yard, stage, states


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
