"""Consolidation: finds which moves of running stages would make room for others, and carries them out on request."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from controlplane import changes
from controlplane.accounts import audit
from controlplane.accounts.models import User
from controlplane.clauses import clause, of_engine, told
from controlplane.jobs import service
from controlplane.jobs.models import Stage
from controlplane.pools import profiles
from controlplane.scheduling.store import LiveStore
from controlplane.whatif.questions import MOST_STAGES_WAITING, Question, ask
from scheduler.core.model.lifecycle import Cause, State
from scheduler.core.model.types import Snapshot
from scheduler.core.planning.consolidate import MoveAdvice, advise
from scheduler.decisions import difference


@dataclass(frozen=True, slots=True)
class Thought:
    """All advice in the order of the queue, the names of stages and nodes by their ids, and the time.

    ``too_large`` says that nothing was computed because too many stages wait.
    """

    at: float
    advice: tuple[MoveAdvice, ...]
    stages: Mapping[str, str]
    nodes: Mapping[str, str]
    where: Mapping[str, tuple[str, ...]]
    too_large: bool = False


def think(world: Snapshot, now: float) -> Thought:
    """Compute the advice for a world."""
    nodes = {node.id: node.name for node in world.nodes}
    where = {one.id: one.placement.nodes for one in world.running}
    if len(world.waiting) > MOST_STAGES_WAITING:
        return Thought(now, (), {}, nodes, where, too_large=True)
    chosen = profiles.of(world.pools)
    return Thought(now, advise(world, chosen, now), difference.named(world), nodes, where)


QUESTION: Final = Question("consolidation", Thought, is_personal=False)


def answer(_params: Mapping[str, Any], store: LiveStore, now: float) -> Thought:
    """Answer the question: compute the advice for the current world."""
    return think(store.load(now), now)


def thought(user: User) -> Thought:
    """Return the current advice; a recent answer is reused."""
    return ask(QUESTION, {}, user)


def follow(stage_id: str, user: User) -> tuple[MoveAdvice, Thought] | None:
    """Carry out the advice for this stage: move the stages in its way, and reserve for it what they free.

    Returns None, and does nothing, if there is no such advice now.
    """
    found = ask(QUESTION, {}, user, anew=True)
    advice = next((one for one in found.advice if one.stage == stage_id), None)
    if advice is None:
        return None
    ids = [uuid.UUID(move.victim) for move in advice.moves]
    whys = {move.victim: of_engine(move.why, move.said) for move in advice.moves}
    at = timezone.now()
    with transaction.atomic():
        jobs = service.lock(set(Stage.objects.filter(id__in=ids).values_list("job_id", flat=True)))
        rows = list(Stage.objects.filter(id__in=ids))
        if any(row.state != State.RUNNING for row in rows):
            return None
        notes: list[service.Note] = []
        for row in rows:
            note = told(clause("AsAsked", why=whys[str(row.id)], actor=user.get_username()))
            notes += service.stop(
                [jobs[row.job_id]], [row], Cause.MOVE, at, stop_for=uuid.UUID(advice.stage), note=note
            )
        service.settle(jobs.values(), notes, at, rows)
        moved = {"moved": [found.stages.get(move.victim, "?") for move in advice.moves], "price": advice.price}
        named = ("stage", advice.stage, found.stages.get(advice.stage, "?"))
        audit.record("consolidation.follow", named, after=moved)
        transaction.on_commit(changes.wake)
        keys = ["jobs", "fleet", "timeline", *(f"job:{job.number}" for job in jobs.values())]
        transaction.on_commit(lambda: changes.announce(*keys))
    return advice, found
