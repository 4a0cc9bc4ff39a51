"""The search for victims: the cheapest running stages whose stop makes room for a stage."""

from __future__ import annotations

import numpy as np

from scheduler.core.model.types import Placement, Running, Stage
from scheduler.core.resources.fleet import Rates
from scheduler.core.resources.ledger import Ledger
from scheduler.core.resources.match import Candidate, grant
from scheduler.core.resources.speed import deciding
from scheduler.core.world.pending import Column
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import grants_of


def cheapest(
    stage: Stage, feasible: FeasibleSet, slots: Column, costs: Rates, most: float, look: int, world: ReadOnlyWorld
) -> tuple[Placement, tuple[Running, ...]] | None:
    """Return a placement for all ranks and the victims it needs, none of which could be spared. Restores the ledger.

    ``slots`` (of the victim index) are the stages that may be stopped and ``costs`` the cost of each, in any unit. For
    each rank the ``look`` most promising places are examined, except those that certainly cost more than ``most``.
    """
    with world.trial() as ledger:
        return _choose(stage, feasible, slots, costs, most, look, ledger, world)


def _choose(
    stage: Stage,
    feasible: FeasibleSet,
    slots: Column,
    costs: Rates,
    most: float,
    look: int,
    ledger: Ledger,
    world: ReadOnlyWorld,
) -> tuple[Placement, tuple[Running, ...]] | None:
    sets, cost = [], dict[str, float]()
    for line, some in _promising(stage, feasible, slots, costs, most, look, world):
        place = feasible.places[line]
        cost.update((world.victim_index.stages[slots[i]].id, float(costs[i])) for i in some)
        needed = _least(feasible, place, _stoppable(slots[some], cost, world), cost, ledger)
        if needed is not None:
            sets.append((sum(cost[one.id] for one in needed), place.node.name, place, needed))
    if len(sets) < stage.nodes:
        return None
    sets.sort(key=lambda one: one[:2])
    chosen = sets[: stage.nodes]
    victims = {one.id: one for _, _, _, needed in chosen for one in needed}
    if not victims:
        return None  # it fits without: something else holds it back, and stopping others would not help
    for victim in victims.values():
        ledger.release(grants_of(victim))
    ranks = [grant(feasible.alternative.asks, place, ledger) for _, _, place, _ in chosen]
    nodes = tuple(place.node.id for _, _, place, _ in chosen)
    if any(rank is None for rank in ranks):
        return None
    placement = Placement(feasible.alternative.index, nodes, tuple(rank for rank in ranks if rank is not None))
    return placement, tuple(victims[key] for key in sorted(victims))


def _promising(
    stage: Stage, feasible: FeasibleSet, slots: Column, costs: Rates, most: float, look: int, world: ReadOnlyWorld
) -> list[tuple[int, Column]]:
    """Return the places on which the asks may fit at the least cost, each with the possible victims there (positions in
    ``slots``).

    The bound of a place is what the missing devices cost at the price of their cheapest holder, so no set of victims
    there can be cheaper. Places whose bound exceeds ``most`` are left out.
    """
    victim_index, nodes = world.victim_index, feasible.places.nodes
    world.refresh(feasible, world.profile(stage.pool))
    at, count = deciding(feasible.alternative.asks), len(world.fleet.nodes)
    ask = feasible.alternative.asks[at]
    gives = np.bincount(victim_index.node[slots], victim_index.gives[slots], count)
    rate = np.full(count, np.inf)
    np.minimum.at(rate, victim_index.node[slots], costs / np.maximum(victim_index.gives[slots], 1.0))
    free = np.maximum(world.ledger.milli[feasible.rows[at]], 0).sum(axis=1)
    missing = np.maximum(ask.count * ask.milli - free, 1.0)
    bound = np.where(feasible.fits, 0.0, np.where(gives[nodes] > 0, missing * rate[nodes], np.inf))
    bound[~feasible.fits & (free + gives[nodes] < ask.count * ask.milli)] = np.inf
    lines = np.flatnonzero(bound <= most)
    lines = lines[np.argsort(bound[lines], kind="stable")][: look * stage.nodes]
    return [(line, np.flatnonzero(victim_index.node[slots] == nodes[line])) for line in sorted(lines.tolist())]


def _stoppable(slots: Column, cost: dict[str, float], world: ReadOnlyWorld) -> list[Running]:
    """Return these running stages, the least important and cheapest first."""
    stages: list[Running] = world.victim_index.stages[slots].tolist()
    guards = {one.pool: world.profile(one.pool).protects for one in stages}
    free = [one for one in stages if not any(policy.protects(one, world) for policy in guards[one.pool])]
    return sorted(free, key=lambda one: (one.priority, cost[one.id], one.id))


def _least(
    feasible: FeasibleSet, place: Candidate, running: list[Running], cost: dict[str, float], ledger: Ledger
) -> list[Running] | None:
    """Return the fewest, least important stages of one node whose stop makes the asks fit; ``None`` if no set does."""
    asks = feasible.alternative.asks
    if grant(asks, place, ledger) is not None:
        return []
    mark = ledger.checkpoint()
    stopped: list[Running] = []
    for one in running:
        ledger.release(grants_of(one))
        stopped.append(one)
        if grant(asks, place, ledger) is not None:
            break
    else:
        ledger.rollback(mark)
        return None
    for one in sorted(stopped, key=lambda one: (-one.priority, -cost[one.id], one.id)):
        ledger.occupy(grants_of(one))
        if grant(asks, place, ledger) is not None:
            stopped.remove(one)  # it fits with this one still there
        else:
            ledger.release(grants_of(one))
    ledger.rollback(mark)
    return stopped
