"""Counterfactuals: finds which changes would let a job's waiting stages start, by trying them with the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controlplane.accounts.models import User
from controlplane.jobs.models import Job
from controlplane.pools import profiles
from controlplane.pools.models import PriorityClass
from controlplane.scheduling.store import LiveStore
from controlplane.whatif.questions import MOST_STAGES_WAITING, Question, ask
from scheduler.core.explain import counterfactual
from scheduler.core.explain.counterfactual import Findings
from scheduler.core.model.types import Snapshot
from scheduler.core.planning import engine
from scheduler.decisions import difference

TRIES = 32
MOST_STAGES = 3


@dataclass(frozen=True, slots=True)
class Tried:
    """The findings by the id of each waiting stage of a job, the names of all stages, and the time.

    ``too_large`` says that nothing was tried because too many stages wait.
    """

    at: float
    found: dict[str, Findings]
    names: dict[str, str]
    too_large: bool = False


def search(world: Snapshot, now: float, job_id: str) -> Tried:
    """Return the findings for the first few waiting stages of a job."""
    waiting = [stage for stage in world.waiting if stage.job == job_id][:MOST_STAGES]
    if not waiting:
        return Tried(now, {}, {})
    if len(world.waiting) > MOST_STAGES_WAITING:
        return Tried(now, {}, {}, too_large=True)
    chosen = profiles.of(world.pools)
    plan = engine.plan(world, chosen, now)
    classes = dict(PriorityClass.objects.values_list("name", "value"))
    left, found = TRIES, {}
    for stage in waiting:
        if left <= 0:
            break
        found[stage.id] = counterfactual.search(world, chosen, now, stage.id, plan=plan, classes=classes, tries=left)
        left -= found[stage.id].tries
    return Tried(now, found, difference.named(world))


QUESTION: Final = Question("counterfactuals", Tried, is_personal=False)


def answer(params: Mapping[str, Any], store: LiveStore, now: float) -> Tried:
    """Answer the question: search; ``params`` has the id of the ``job``."""
    return search(store.load(now), now, params["job"])


def tried(job: Job, user: User) -> Tried:
    """Return the counterfactuals of a job's waiting stages; a recent answer is reused."""
    return ask(QUESTION, {"job": str(job.id)}, user)
