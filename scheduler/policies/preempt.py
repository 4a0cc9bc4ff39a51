"""Preempt: stop less urgent work for more urgent work, where that is worth its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.core import price
from scheduler.core.line import Column
from scheduler.core.match import Candidate, grant
from scheduler.core.ports import Eviction
from scheduler.core.shape import Way
from scheduler.core.speed import deciding
from scheduler.core.types import Grant, Placement, Running, Stage
from scheduler.core.view import Option, View


@dataclass(frozen=True)
class Preempt:
    """Takes the cheapest set of victims of lower priority, none of which could be left out.

    Equal priority never preempts. A victim is spared within its minimum run time and after ``budget`` preemptions.
    ``per_cycle`` bounds how many stages may be stopped at once, so that the cluster does not shake. Of all places, the
    ``look`` most promising for each rank are looked at closely.
    """

    budget: int = 5
    per_cycle: int = 64
    factor: float = field(default=1.0, metadata={"range": (0.001, 1e6)})
    look: int = 16

    def could(self, stage: Stage, view: View) -> bool:
        """Whether there is anybody of a lower priority, and not too many were stopped already."""
        if stage.priority <= view.least_priority:
            return False
        below = view.holders.below(stage.priority, self.budget, view.now)
        return len(view.doomed) < self.per_cycle and len(below) > 0

    def victims(self, stage: Stage, ways: Sequence[Way], wait_s: float, view: View) -> Eviction | None:
        """The best eviction over all ways, or ``None`` where none gains more than it costs."""
        cheapest: tuple[float, Eviction] | None = None
        if len(view.doomed) >= self.per_cycle:
            return None
        for way in ways:
            devices = price.breadth(way.alternative, stage.nodes)
            most = price.gain(stage.priority, devices, wait_s, 0.0) + price.relief(view, stage, 0, wait_s)
            found = self._on(stage, way, most / self.factor, view)
            if found is None:
                continue
            placement, victims = found
            prices = tuple(price.price(victim, view.now) for victim in victims)
            delay_s = max(victim.grace_s for victim in victims)
            gain = price.gain(stage.priority, devices, wait_s, delay_s)
            above = max(victim.priority for victim in victims)
            gain += price.relief(view, stage, above, max(wait_s - delay_s, 0.0))
            if gain < self.factor * sum(prices) or len(victims) + len(view.doomed) > self.per_cycle:
                continue
            start = view.now + delay_s
            length = view.length_s(stage, way, view.profile(stage.pool).plan_with)
            eviction = Eviction(Option(way, start, start + length, placement), victims, prices, gain)
            if cheapest is None or gain - sum(prices) > cheapest[0]:
                cheapest = (gain - sum(prices), eviction)
        return cheapest[1] if cheapest else None

    def _on(self, stage: Stage, way: Way, most: float, view: View) -> tuple[Placement, tuple[Running, ...]] | None:
        """A placement for all ranks, and the victims that it needs; the world is as before afterwards."""
        mark = view.ledger.checkpoint()
        try:
            return self._choose(stage, way, most, view)
        finally:
            view.ledger.rollback(mark)

    def _choose(self, stage: Stage, way: Way, most: float, view: View) -> tuple[Placement, tuple[Running, ...]] | None:
        found = self._promising(stage, way, most, view)
        sets = []
        for line, slots in found:
            running = self._stoppable(slots, view)
            place = way.places[line]
            needed = self._least(way, place, running, view)
            if needed is not None:
                sets.append((sum(price.price(one, view.now) for one in needed), place.node.name, place, needed))
        if len(sets) < stage.nodes:
            return None
        sets.sort(key=lambda one: one[:2])
        chosen = sets[: stage.nodes]
        victims = {one.id: one for _, _, _, needed in chosen for one in needed}
        if not victims:
            return None  # it fits without: something else holds it back, and stopping others would not help
        for victim in victims.values():
            view.ledger.release(_grants(victim))
        ranks = [grant(way.alternative.asks, place, view.ledger) for _, _, place, _ in chosen]
        nodes = tuple(place.node.id for _, _, place, _ in chosen)
        if any(rank is None for rank in ranks):
            return None
        placement = Placement(way.alternative.index, nodes, tuple(rank for rank in ranks if rank is not None))
        return placement, tuple(victims[key] for key in sorted(victims))

    def _promising(self, stage: Stage, way: Way, most: float, view: View) -> list[tuple[int, Column]]:
        """The places on which the asks may fit for the least price, each with those who could be stopped there.

        A place is judged by what freeing the missing devices would cost at the price of its cheapest holder: no set of
        victims there can be cheaper. Places on which that alone exceeds ``most`` are left out.
        """
        holders, nodes = view.holders, way.places.nodes
        slots = holders.below(stage.priority, self.budget, view.now)
        view.refresh(way, view.profile(stage.pool))
        at, count = deciding(way.alternative.asks), len(view.fleet.nodes)
        ask = way.alternative.asks[at]
        gives = np.bincount(holders.node[slots], holders.gives[slots], count)
        rate = np.full(count, np.inf)
        each = holders.prices(slots, view.now) / np.maximum(holders.gives[slots], 1.0)
        np.minimum.at(rate, holders.node[slots], each)
        free = np.maximum(view.ledger.milli[way.rows[at]], 0).sum(axis=1)
        missing = np.maximum(ask.count * ask.milli - free, 1.0)
        bound = np.where(way.fits, 0.0, np.where(gives[nodes] > 0, missing * rate[nodes], np.inf))
        bound[~way.fits & (free + gives[nodes] < ask.count * ask.milli)] = np.inf
        lines = np.flatnonzero(bound <= most)
        lines = lines[np.argsort(bound[lines], kind="stable")][: self.look * stage.nodes]
        return [(line, slots[holders.node[slots] == nodes[line]]) for line in sorted(lines.tolist())]

    def _stoppable(self, slots: Column, view: View) -> list[Running]:
        """These running stages, the least important and cheapest first."""
        stages: list[Running] = view.holders.stages[slots].tolist()
        guards = {one.pool: view.profile(one.pool).protects for one in stages}
        free = [one for one in stages if not any(policy.protects(one, view) for policy in guards[one.pool])]
        return sorted(free, key=lambda one: (one.priority, price.price(one, view.now), one.id))

    def _least(self, way: Way, place: Candidate, running: list[Running], view: View) -> list[Running] | None:
        """The fewest, least important stages of one node without which the asks fit; ``None`` where none would do."""
        asks = way.alternative.asks
        if grant(asks, place, view.ledger) is not None:
            return []
        mark = view.ledger.checkpoint()
        stopped: list[Running] = []
        for one in running:
            view.ledger.release(_grants(one))
            stopped.append(one)
            if grant(asks, place, view.ledger) is not None:
                break
        else:
            view.ledger.rollback(mark)
            return None
        for one in sorted(stopped, key=lambda one: (-one.priority, -price.price(one, view.now), one.id)):
            view.ledger.occupy(_grants(one))
            if grant(asks, place, view.ledger) is not None:
                stopped.remove(one)  # it fits with this one still there
            else:
                view.ledger.release(_grants(one))
        view.ledger.rollback(mark)
        return stopped


def _grants(stage: Running) -> tuple[Grant, ...]:
    return tuple(one for rank in stage.placement.grants for one in rank)
