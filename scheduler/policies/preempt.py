"""Preempt: stops stages of lower priority for those of higher priority, if that is worth its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.hooks import Eviction, Victims
from scheduler.core.model.types import Stage
from scheduler.core.planning.victims import cheapest
from scheduler.core.world import price
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import Option


@dataclass(frozen=True)
class Preempt(Victims):
    """Takes the cheapest set of victims of lower priority, none of which could be left out.

    Equal priority never preempts. A victim is protected within its minimum run time and after ``budget`` preemptions.
    ``per_cycle`` limits how many stages may be stopped at once, against instability. Of all places, the ``look`` most
    promising for each rank are evaluated exactly.
    """

    budget: int = 5
    per_cycle: int = 64
    factor: float = field(default=1.0, metadata={"range": (0.001, 1e6)})
    look: int = 16

    def could(self, stage: Stage, world: ReadOnlyWorld) -> bool:
        """Whether there are stages of lower priority, and not too many were stopped already."""
        if stage.priority <= world.least_priority:
            return False
        below = world.victim_index.below(stage.priority, self.budget, world.now)
        return len(world.chosen_victims) < self.per_cycle and len(below) > 0

    def victims(
        self, stage: Stage, feasible_sets: Sequence[FeasibleSet], wait_s: float, world: ReadOnlyWorld
    ) -> Eviction | None:
        """Return the best eviction over all alternatives, or ``None`` if none gains more than it costs."""
        best: tuple[float, Eviction] | None = None
        if len(world.chosen_victims) >= self.per_cycle:
            return None
        slots = world.victim_index.below(stage.priority, self.budget, world.now)
        costs = world.victim_index.prices(slots, world.now)
        for feasible in feasible_sets:
            devices = price.breadth(feasible.alternative, stage.nodes)
            most = price.gain(stage.priority, devices, wait_s, 0.0) + price.relief(world, stage, 0, wait_s)
            found = cheapest(stage, feasible, slots, costs, most / self.factor, self.look, world)
            if found is None:
                continue
            placement, victims = found
            prices = tuple(price.price(victim, world.now) for victim in victims)
            delay_s = max(victim.grace_s for victim in victims)
            gain = price.gain(stage.priority, devices, wait_s, delay_s)
            above = max(victim.priority for victim in victims)
            gain += price.relief(world, stage, above, max(wait_s - delay_s, 0.0))
            if gain < self.factor * sum(prices) or len(victims) + len(world.chosen_victims) > self.per_cycle:
                continue
            start = world.now + delay_s
            length = world.length_s(stage, feasible, world.profile(stage.pool).plan_with)
            eviction = Eviction(Option(feasible, start, start + length, placement), victims, prices, gain)
            if best is None or gain - sum(prices) > best[0]:
                best = (gain - sum(prices), eviction)
        return best[1] if best else None
