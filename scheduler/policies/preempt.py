"""Preempt: stop less urgent work for more urgent work, where that is worth its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core import price
from scheduler.core.lifecycle import State
from scheduler.core.match import Candidate, grant
from scheduler.core.ports import Eviction
from scheduler.core.types import Grant, Placement, Running, Stage
from scheduler.core.view import Option, View, Way


@dataclass(frozen=True)
class Preempt:
    """Takes the cheapest set of victims of lower priority, none of which could be left out.

    Equal priority never preempts. A victim is spared within its minimum run time and after ``budget`` preemptions.
    ``per_cycle`` bounds how many stages may be stopped at once, so that the cluster does not shake.
    """

    budget: int = 5
    per_cycle: int = 64
    factor: float = 1.0

    def victims(self, stage: Stage, ways: Sequence[Way], wait_s: float, view: View) -> Eviction | None:
        """The best eviction over all ways, or ``None`` where none gains more than it costs."""
        cheapest: tuple[float, Eviction] | None = None
        for way in ways:
            found = self._on(stage, way, view)
            if found is None:
                continue
            placement, victims = found
            prices = tuple(price.price(victim, view.now) for victim in victims)
            delay_s = max(victim.grace_s for victim in victims)
            devices = price.breadth(way.alternative, stage.nodes)
            gain = price.gain(stage.priority, devices, wait_s, delay_s)
            if gain < self.factor * sum(prices) or len(victims) + len(view.doomed) > self.per_cycle:
                continue
            start = view.now + delay_s
            length = view.length_s(stage, way, view.profile(stage.pool).plan_with)
            eviction = Eviction(Option(way, start, start + length, placement), victims, prices, gain)
            if cheapest is None or gain - sum(prices) > cheapest[0]:
                cheapest = (gain - sum(prices), eviction)
        return cheapest[1] if cheapest else None

    def _on(self, stage: Stage, way: Way, view: View) -> tuple[Placement, tuple[Running, ...]] | None:
        """A placement for all ranks, and the victims that it needs; the world is as before afterwards."""
        mark = view.ledger.checkpoint()
        try:
            return self._choose(stage, way, view)
        finally:
            view.ledger.rollback(mark)

    def _choose(self, stage: Stage, way: Way, view: View) -> tuple[Placement, tuple[Running, ...]] | None:
        on_node: dict[str, list[Running]] = {}
        for one in sorted(view.running.values(), key=lambda one: (one.priority, price.price(one, view.now), one.id)):
            if self._may_stop(one, stage, view):
                for node in one.placement.nodes:
                    on_node.setdefault(node, []).append(one)
        sets = []
        for place in way.places:
            needed = self._least(way, place, on_node.get(place.node.id, []), view)
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
        ranks = [grant(way.alternative.asks, place, view.ledger.free) for _, _, place, _ in chosen]
        nodes = tuple(place.node.id for _, _, place, _ in chosen)
        if any(rank is None for rank in ranks):
            return None
        placement = Placement(way.alternative.index, nodes, tuple(rank for rank in ranks if rank is not None))
        return placement, tuple(victims[key] for key in sorted(victims))

    def _least(self, way: Way, place: Candidate, running: list[Running], view: View) -> list[Running] | None:
        """The fewest, least important stages of one node without which the asks fit; ``None`` where none would do."""
        asks = way.alternative.asks
        if grant(asks, place, view.ledger.free) is not None:
            return []
        mark = view.ledger.checkpoint()
        stopped: list[Running] = []
        for one in running:
            view.ledger.release(_grants(one))
            stopped.append(one)
            if grant(asks, place, view.ledger.free) is not None:
                break
        else:
            view.ledger.rollback(mark)
            return None
        for one in sorted(stopped, key=lambda one: (-one.priority, -price.price(one, view.now), one.id)):
            view.ledger.claim(_grants(one))
            if grant(asks, place, view.ledger.free) is not None:
                stopped.remove(one)  # it fits with this one still there
            else:
                view.ledger.release(_grants(one))
        view.ledger.rollback(mark)
        return stopped

    def _may_stop(self, one: Running, stage: Stage, view: View) -> bool:
        return (
            one.preemptible
            and one.priority < stage.priority
            and one.state in (State.STARTING, State.RUNNING, State.SUSPENDED)
            and one.id not in view.doomed
            and one.evicted_for is None
            and view.now - one.started_at >= one.min_runtime_s
            and one.preemptions < self.budget
        )


def _grants(stage: Running) -> tuple[Grant, ...]:
    return tuple(one for rank in stage.placement.grants for one in rank)
