"""What runs on a pilot whose engine takes it back in order is queued again: nobody stopped it, and it did not fail."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from controlplane.providers.models import NodeProvider, Pilot
from tests.record.yard import Yard, stage

pytestmark = pytest.mark.django_db(transaction=True)

# How an agent tells of a command that was told to stop.
ENDS: list[dict[str, Any]] = [{"code": 143, "cause": "EXIT_CODE"}, {"code": 0}, {"code": 1}]


def began(yard: Yard, state: str) -> Any:
    agent = yard.agent("lab-1")
    lab = NodeProvider.objects.create(name="lab", kind="ray", pool=yard.pool)
    Pilot.objects.create(
        provider=lab, shape="s", hours=1, label="a", state=state, node=agent.node, created_at=timezone.now()
    )
    job = yard.submit(run="sleep 600", time_limit="10m")
    yard.cycle()
    agent.start()
    return agent, job


@pytest.mark.parametrize("end", ENDS)
def test_one_that_the_engine_stopped_is_queued_again_without_a_failure(yard: Yard, end: dict[str, Any]) -> None:
    agent, job = began(yard, "UP")
    agent.end(stage(job), **end, stopped=True)
    now = stage(job)
    assert (now.state, now.cause, now.failures, now.preemptions) == ("PENDING", "PREEMPTED", 0, 1)
    assert now.detail == "the engine that ran it says that its allocation has ended"
    # It does not begin again on the pilot that is about to go.
    agent.report()
    yard.cycle()
    agent.node.refresh_from_db()
    assert (stage(job).state, agent.node.state) == ("PENDING", "DRAINING")


def test_one_that_failed_by_itself_has_failed(yard: Yard) -> None:
    agent, job = began(yard, "UP")
    agent.end(stage(job), code=3)
    assert (stage(job).state, stage(job).cause) == ("FAILED", "EXIT_CODE")


def test_a_node_without_a_pilot_is_judged_as_ever(yard: Yard) -> None:
    agent, job = began(yard, "GONE")
    agent.end(stage(job), code=143, stopped=True)
    assert (stage(job).state, stage(job).cause) == ("FAILED", "EXIT_CODE")
