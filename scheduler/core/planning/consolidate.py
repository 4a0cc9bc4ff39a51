"""Consolidation: which running stages to move so that a waiting stage fits, and what the moves cost.

Capacity scattered over nodes does not help a stage that needs it on one node. For stages at the head of the queue that
fit on no node although enough is free in total, this finds a cheap, small set of running stages that can continue
elsewhere at once and whose leaving makes room. It is advice: nothing is moved unless a person decides so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from scheduler.core.matching.gate import admitted, gate
from scheduler.core.matching.placement import now_slot
from scheduler.core.model.clauses import clause, say
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Grant, Move, Placement, Running, Snapshot, Stage
from scheduler.core.planning import engine
from scheduler.core.planning.evacuate import another_place
from scheduler.core.planning.resize import is_movable
from scheduler.core.resources.match import Candidate, grant
from scheduler.core.world import price
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.view import View, WaitOutcome, grants_of

# The number of stages of the queue that are considered, and of the most promising places for each rank.
STAGES, PLACES = 16, 16


@dataclass(frozen=True, slots=True)
class MoveAdvice:
    """With ``moves`` the stage would start at ``placement``. ``price`` is the work that the moved stages lose,
    ``gain`` what the stage gains by not waiting ``wait_s``, both in weighted device-seconds."""

    stage: str
    placement: Placement
    moves: tuple[Move, ...]
    price: float
    gain: float
    wait_s: float

    @property
    def is_worth(self) -> bool:
        return self.gain > self.price


def advise(world: Snapshot, profiles: Profile | Mapping[str, Profile], now: float) -> tuple[MoveAdvice, ...]:
    """Return advice for stages in the order of the queue. Pure. Each advice assumes that no other is followed."""
    view = View(world, profiles, now)
    queue = engine.decide(view)
    waits = [stage for stage in queue if stage.id not in view.starts and stage.id not in view.owners]
    scattered = ((stage, feasible_sets) for stage in waits if (feasible_sets := _scattered(view, stage)))
    found = [_for_one(view, stage, feasible_sets) for stage, feasible_sets in islice(scattered, STAGES)]
    return tuple(one for one in found if one is not None)


def _scattered(view: View, stage: Stage) -> list[FeasibleSet]:
    """Return the feasible sets in which only scattered free capacity keeps the stage from starting."""
    outcome = WaitOutcome(stage)
    earliest, request = gate(view, outcome), view.request_class(stage)
    if earliest is None or earliest > view.now or request.impossible:
        return []
    return [feasible for feasible in admitted(view, outcome, request) if _fits_in_all(view, stage, feasible)]


def _fits_in_all(view: View, stage: Stage, feasible: FeasibleSet) -> bool:
    """Return whether the free capacity of all nodes together meets every ask."""
    for i, ask in enumerate(feasible.alternative.asks):
        free = view.ledger.milli[feasible.rows[i]].clip(min=0).sum()
        if free < ask.count * ask.milli * stage.nodes:
            return False
    return True


def _for_one(view: View, stage: Stage, feasible_sets: Sequence[FeasibleSet]) -> MoveAdvice | None:
    """Return the cheapest advice for a stage over these feasible sets."""
    entry = view.reservations.get(stage.id)
    if entry is not None:  # it would not stand in its own way
        view.unreserve(stage.id)
    try:
        horizon_s = view.profile(stage.pool).horizon_s
        wait_s = min(entry.option.start_at - view.now, horizon_s) if entry is not None else horizon_s
        found = [one for feasible in feasible_sets if (one := _make_place(view, stage, feasible, wait_s)) is not None]
    finally:
        if entry is not None:
            view.reserve(stage, entry.option, entry.promise, keeps=True)
    return min(found, key=lambda one: (one.price, len(one.moves)), default=None)


def _make_place(view: View, stage: Stage, feasible: FeasibleSet, wait_s: float) -> MoveAdvice | None:
    """Move stages until every rank of the stage has a node. Restores the ledger before it returns."""
    mark = view.ledger.checkpoint()
    try:
        ranks: list[tuple[str, tuple[Grant, ...]]] = []
        moves: list[Move] = []
        moved: set[str] = set()
        for place in _cheapest_first(view, stage, feasible):
            made = _empty(view, stage, feasible, place, moved)
            if made is None:
                continue
            own, more = made
            ranks.append((place.node.id, own))
            moves += more
            moved |= {one.victim for one in more}
            if len(ranks) == stage.nodes:
                break
        else:
            return None
    finally:
        view.ledger.rollback(mark)
    if not moves:
        return None  # a place is free: something else keeps the stage from it
    delay_s = max(view.running[one.victim].grace_s for one in moves)
    devices = price.breadth(feasible.alternative, stage.nodes)
    return MoveAdvice(
        stage.id,
        Placement(feasible.alternative.index, tuple(node for node, _ in ranks), tuple(own for _, own in ranks)),
        tuple(moves),
        round(sum(one.price for one in moves), 6),
        round(price.gain(stage.priority, devices, wait_s, delay_s), 6),
        round(wait_s, 3),
    )


def _cheapest_first(view: View, stage: Stage, feasible: FeasibleSet) -> list[Candidate]:
    """Return candidate nodes that can be emptied, cheapest first, among those with the most free devices of the
    first ask."""
    free = view.ledger.milli[feasible.rows[0]].clip(min=0).sum(axis=1)
    order = sorted(range(len(feasible.places)), key=lambda i: (-int(free[i]), feasible.places[i].node.name))
    found: list[tuple[float, int, Candidate]] = []
    for i in order[: PLACES * stage.nodes]:
        mark = view.ledger.checkpoint()
        made = _empty(view, stage, feasible, feasible.places[i], set())
        view.ledger.rollback(mark)
        if made is not None:
            found.append((sum(one.price for one in made[1]), i, feasible.places[i]))
    return [place for _, _, place in sorted(found, key=lambda one: one[:2])]


def _empty(
    view: View, stage: Stage, feasible: FeasibleSet, place: Candidate, moved: set[str]
) -> tuple[tuple[Grant, ...], list[Move]] | None:
    """Return the grants of the stage on this node and the moves that make room for them, both entered into the ledger.

    Returns ``None`` and leaves the ledger unchanged if no room can be made.
    """
    mark = view.ledger.checkpoint()
    leaving: list[Running] = []
    for one in (None, *_movable(view, place, moved)):
        if one is not None:
            view.ledger.release(grants_of(one))
            leaving.append(one)
        own = grant(feasible.alternative.asks, place, view.ledger)
        if own is None:
            continue
        view.ledger.claim(own)
        moves = _elsewhere(view, stage, _needed(view, leaving))
        if moves is not None:
            return own, moves
        break
    view.ledger.rollback(mark)
    return None


def _movable(view: View, place: Candidate, moved: set[str]) -> list[Running]:
    """Return the stages that hold a device of this node and may be moved, cheapest first."""
    here = [one for one in view.running.values() if place.node.id in one.placement.nodes and one.id not in moved]
    free = [one for one in here if one.alternatives and is_movable(one, view)]
    return sorted(free, key=lambda one: (price.price(one, view.now), one.id))


def _needed(view: View, leaving: Sequence[Running]) -> list[Running]:
    """Return the stages of ``leaving`` that must move for the grants to fit; the others get their devices back in
    the ledger."""
    needed = list(leaving)
    for one in sorted(leaving, key=lambda each: (-price.price(each, view.now), each.id)):
        if view.ledger.has(grants_of(one)):
            view.ledger.claim(grants_of(one))
            needed.remove(one)
    return needed


def _elsewhere(view: View, stage: Stage, leaving: Sequence[Running]) -> list[Move] | None:
    """Return a new place for each of these stages, all at the same time; ``None`` if one has none."""
    moves: list[Move] = []
    for one in leaving:
        option = another_place(view, one, now_slot)
        if option is None:
            return None
        view.ledger.claim(option.grants)
        said = (clause("MakesRoom", stage=f"#{stage.number} {stage.name}"),)
        moves.append(Move(one.id, option.placement, say(said), round(price.price(one, view.now), 6), 0.0, said))
    return moves
