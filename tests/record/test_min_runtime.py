"""A pool leaves a stage alone for a while after its start, and what is set counts from the next cycle on."""

from __future__ import annotations

from controlplane.jobs.models import Job
from controlplane.pools.models import Pool
from controlplane.scheduling.store import LiveStore, clock
from tests.record.yard import Yard, cpu, gpu, stage, states


def contest(yard: Yard, min_runtime_s: int) -> tuple[Job, Job]:
    """A stage that has just begun, and a more urgent one that wants the same device."""
    Pool.objects.update(min_runtime_s=min_runtime_s)
    agent = yard.agent("a", cpu("a"), gpu("a"))
    holder = yard.submit(priority="low", devices={"kind": "gpu"}, expected="20h", time_limit="30h")
    yard.cycle()
    assert agent.start() == ["main"]
    urgent = yard.submit(priority="urgent", devices={"kind": "gpu"}, expected="20h", time_limit="30h")
    return holder, urgent


def test_it_is_not_stopped_for_another_before_it_has_run_that_long(yard: Yard) -> None:
    holder, urgent = contest(yard, 3600)
    (running,) = LiveStore().load(clock()).running
    assert running.min_runtime_s == 3600.0
    yard.cycle()
    yard.cycle(running.started_at + 3599)
    assert (states(holder)["main"], states(urgent)["main"]) == ("RUNNING", "PENDING")
    yard.cycle(running.started_at + 3601)
    assert states(holder)["main"] == "STOPPING"
    assert stage(holder).attempts.get().stop_for == stage(urgent).id


def test_a_change_counts_from_the_next_cycle_on(yard: Yard) -> None:
    holder, _ = contest(yard, 0)
    Pool.objects.update(min_runtime_s=3600)
    yard.cycle()
    assert states(holder)["main"] == "RUNNING"
    Pool.objects.update(min_runtime_s=0)
    later = yard.submit(priority="urgent", devices={"kind": "gpu"}, expected="20h", time_limit="30h")
    yard.cycle()
    assert states(holder)["main"] == "STOPPING"
    assert stage(holder).attempts.get().stop_for == stage(later).id
