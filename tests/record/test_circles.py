"""Live: two stages that stop each other do so once, and what that cost stands in the ledger of their projects."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from agents.protocol import Exit, Phase
from controlplane.accounts.models import Project
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Job, Stage
from controlplane.pools.models import Quota
from controlplane.queries.projects import shown
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.model.lifecycle import Cause
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def stops(agent: Agent, job: Job) -> None:
    agent.set(stage(job), Phase.ENDED, exit=Exit(code=85, cause="CHECKPOINTED", stopped=True))


def evict(victim: Job, winner: Job) -> None:
    """As the engine would by a profile that knows no quota."""
    with transaction.atomic():
        jobs = service.lock([victim.id])
        rows = list(Stage.objects.filter(job=victim))
        notes = service.stop([*jobs.values()], rows, Cause.PREEMPTED, timezone.now(), stop_for=stage(winner).id)
        service.settle(jobs.values(), notes, timezone.now(), rows)


def test_who_has_been_round_goes_on_to_the_end(yard: Yard) -> None:
    """The poor stage is stopped for the urgent one, takes back what is its project's, and is then left alone."""
    other = Project.objects.create(name="other")
    for project, nominal in ((yard.project, 1.0), (other, 0.0)):
        Quota.objects.create(project=project, kind="gpu", nominal=nominal, cohort="all")
    agent = yard.agent("a", cpu("a"), gpu("a"))
    poor = yard.submit(priority="low", devices={"kind": "gpu"}, expected="20h", time_limit="30h")
    yard.cycle()
    agent.start()
    rich = yard.submit(project="other", priority="urgent", devices={"kind": "gpu"}, expected="20h", time_limit="30h")
    evict(poor, rich)
    stops(agent, poor)
    yard.cycle()
    agent.start()
    assert (states(poor)["main"], states(rich)["main"]) == ("PENDING", "RUNNING")
    Stage.objects.filter(job=poor).update(retry_at=None)
    yard.cycle()
    stops(agent, rich)
    Stage.objects.filter(job=rich).update(retry_at=None)
    yard.cycle()
    agent.start()
    assert (states(poor)["main"], states(rich)["main"]) == ("RUNNING", "PENDING")
    (running,) = LiveStore().load(clock()).running
    assert running.in_circle
    for _ in range(3):
        yard.cycle(clock() + 3600)
    assert (states(poor)["main"], states(rich)["main"]) == ("RUNNING", "PENDING")
    assert poor.events.filter(kind="stop").count() == 1
    ledger = {one.name: (one.lost_device_s, one.cost_device_s) for one in shown(Project.objects.all(), yard.user)}
    prices = {a.stage.job_id: a.price for a in Attempt.objects.select_related("stage").exclude(price=None)}
    assert ledger["default"] == (round(prices[poor.id], 3), round(prices[rich.id], 3))
    assert ledger["other"] == (round(prices[rich.id], 3), round(prices[poor.id], 3))
