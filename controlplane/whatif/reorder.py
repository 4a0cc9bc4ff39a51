"""What another priority, a hold or a release of waiting jobs does to the others: both queues planned by the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controlplane.accounts.models import User
from controlplane.pools import profiles
from controlplane.scheduling.store import LiveStore
from controlplane.whatif.questions import MOST_STAGES_WAITING, Question, ask
from scheduler.core.model.lifecycle import State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Plan, Snapshot
from scheduler.core.planning import engine

# A start that moves by less means nothing, as starts are predictions.
LEAST_S: Final = 60.0
MOST_MOVES: Final = 500
# The actions whose effect on others is planned.
ACTIONS: Final = frozenset({"change", "hold", "release"})


@dataclass(frozen=True, slots=True)
class MovedStart:
    """A stage whose expected start changes, as seconds since the epoch; None is not foreseen."""

    job: str
    stage: str
    was_at: float | None
    then_at: float | None


@dataclass(frozen=True, slots=True)
class Reordered:
    """The stages whose start moves, the furthest first, and the running ones that are stopped only with the change.

    ``too_large`` says that too many stages wait to try it.
    """

    at: float
    moves: tuple[MovedStart, ...]
    stops: tuple[str, ...] = ()
    too_large: bool = False


QUESTION: Final = Question("reorder", Reordered, fresh_s=5, is_personal=False)


def answer(params: Mapping[str, Any], store: LiveStore, now: float) -> Reordered:
    """Answer the question: plan the queue as it is, and with ``params["action"]`` done to the jobs of these ids."""
    world = store.load(now)
    if len(world.waiting) > MOST_STAGES_WAITING:
        return Reordered(now, (), too_large=True)
    changed = _changed(world, frozenset(params["jobs"]), params["action"], params["priority"])
    return compare(world, changed, profiles.of(world.pools), now)


def compare(world: Snapshot, changed: Snapshot, chosen: Profile | Mapping[str, Profile], now: float) -> Reordered:
    """Plan both worlds and return the stages whose start moves."""
    # In a changed world anything may have been given back, and both are planned alike.
    plans = [engine.plan(replace(each, given_back=None, unsettled=()), chosen, now) for each in (world, changed)]
    one, two = (_starts(plan, now) for plan in plans)
    gone, then_gone = ({stop.victim for stop in plan.stops} for plan in plans)
    moves = [
        MovedStart(stage.job, stage.id, one.get(stage.id), two.get(stage.id))
        for stage in world.waiting
        if _differ(one.get(stage.id), two.get(stage.id))
    ]
    shown = tuple(sorted(moves, key=_by, reverse=True)[:MOST_MOVES])
    return Reordered(now, shown, tuple(sorted(then_gone - gone))[:MOST_MOVES])


def tried(jobs: Sequence[str], action: str, priority: int | None, user: User) -> Reordered:
    """Return what the action on the jobs of these ids does to all that wait; raises ``NotAnswered``."""
    return ask(QUESTION, {"jobs": sorted(jobs), "action": action, "priority": priority}, user)


def _changed(world: Snapshot, jobs: frozenset[str], action: str, priority: int | None) -> Snapshot:
    fields: dict[str, Any] = {"state": State.HELD} if action == "hold" else {"state": State.PENDING, "held_by": ""}
    if action == "change":
        fields = {"priority": priority}
        running = tuple(replace(one, **fields) if one.job in jobs else one for one in world.running)
        world = replace(world, running=running)
    return replace(world, waiting=tuple(replace(one, **fields) if one.job in jobs else one for one in world.waiting))


def _starts(plan: Plan, now: float) -> dict[str, float]:
    found = {wait.stage: wait.planned.start_at for wait in plan.waits if wait.planned}
    found |= {wait.stage: wait.expected.at for wait in plan.waits if wait.expected and wait.expected.known}
    return found | {start.stage: now for start in plan.starts}


def _differ(one: float | None, two: float | None) -> bool:
    if one is None or two is None:
        return one is not two
    return abs(one - two) >= LEAST_S


def _by(move: MovedStart) -> float:
    """How far it moves; from or to what is not foreseen is furthest."""
    return abs(move.then_at - move.was_at) if move.then_at is not None and move.was_at is not None else float("inf")
