"""Overtake: within a class, short stages preempt long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from scheduler.core.hooks import Eviction, Victims
from scheduler.core.model.types import Stage
from scheduler.core.planning.victims import cheapest
from scheduler.core.world import price
from scheduler.core.world.pending import Column
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import Option
from scheduler.core.world.service import middle_left_s, width


@dataclass(frozen=True)
class Overtake(Victims):
    """Stops running stages for a waiting one of their class if the wait that this saves is more than ``factor`` times
    the delay of all stopped stages: the remaining time of the other, the work lost, and the restart.

    The remaining time of a stage follows from its estimate and from how long it has run. With a narrow estimate this is
    shortest remaining time; with a wide one, a stage that has run long is expected to run long still, and it is least
    attained service. Not stopped are stages that need less than ``factor`` times that delay, have a deadline, are
    elastic and shrink instead, or were stopped ``budget`` times already; nor is any for a project that received more
    for its weight than theirs, beyond the hysteresis of fair share. In each cycle the ``first`` shortest stages are
    considered, and at most ``per_cycle`` stages are stopped.
    """

    factor: float = field(default=1.5, metadata={"range": (1.0, 1e6)})
    budget: int = 4
    per_cycle: int = 16
    look: int = 16
    first: int = 16

    def overtakers(self, pool: str, world: ReadOnlyWorld) -> Sequence[Stage]:
        """Return the stages for which stopping a running stage of their class may be worth it, shortest first."""
        pending, victim_index = world.pending, world.victim_index
        if pool not in pending.pools or not world.running:
            return []
        slots = pending.slots()
        slots = slots[(pending.pool[slots] == pending.pools.index(pool)) & ~pending.is_gated[slots]]
        if not len(slots):
            return []
        longest_s = np.zeros(len(pending.owners))
        by_priority: dict[int, float] = {}
        for code in np.flatnonzero(np.bincount(pending.owner[slots])).tolist():
            priority = pending.owners[code][1]
            if priority not in by_priority:
                others = victim_index.alike(priority, self.budget, world.now)
                by_priority[priority] = float(victim_index.left_s(world.now)[others].max(initial=0.0))
            longest_s[code] = by_priority[priority]
        needs_s = self._needs_s(slots, world)
        is_short = self.factor * needs_s < longest_s[pending.owner[slots]]
        slots, needs_s = slots[is_short], needs_s[is_short]
        settled = world.starts.keys() | world.owners | world.evicting.keys()
        stages = (pending.stages[slot] for slot in slots[np.lexsort((pending.number[slots], needs_s))])
        return list(islice((one for one in stages if one.id not in settled), self.first))

    def could(self, stage: Stage, world: ReadOnlyWorld) -> bool:
        return len(world.chosen_victims) < self.per_cycle

    def victims(
        self, stage: Stage, feasible_sets: Sequence[FeasibleSet], wait_s: float, world: ReadOnlyWorld
    ) -> Eviction | None:
        """Return the stages to stop, for the alternative that delays others least."""
        victim_index, now = world.victim_index, world.now
        needs_s = float(self._needs_s(np.array([world.pending.slot[stage.id]]), world)[0])
        slots = victim_index.alike(stage.priority, self.budget, now)
        slots = slots[np.isin(slots, victim_index.of(self._yielding(stage, world), now))]
        delays_s = needs_s + victim_index.again_s[slots] + np.maximum(now - victim_index.saved_at[slots], 0.0)
        left_s = victim_index.left_s(now)[slots]
        may = (left_s > self.factor * delays_s) & ~victim_index.is_spared[slots]
        slots, delays_s, left_s = slots[may], delays_s[may], left_s[may]
        # A stage that would be done nearly as soon costs more than one that takes long.
        costs = delays_s * (1.0 + delays_s / left_s)
        best: tuple[float, Eviction] | None = None
        for feasible in feasible_sets if len(slots) else ():
            found = cheapest(stage, feasible, slots, costs, wait_s / self.factor, self.look, world)
            if found is None or len(found[1]) + len(world.chosen_victims) > self.per_cycle:
                continue
            placement, victims = found
            cost_of = {one.id: cost for one, cost in zip(victim_index.stages[slots], costs.tolist(), strict=True)}
            cost = sum(cost_of[one.id] for one in victims)
            start = now + max(one.grace_s for one in victims)
            gain = price.gain(stage.priority, price.breadth(feasible.alternative, stage.nodes), wait_s, start - now)
            prices = tuple(price.price(one, now) for one in victims)
            if self.factor * cost > wait_s or gain < sum(prices) or (best is not None and cost >= best[0]):
                continue
            length = world.length_s(stage, feasible, world.profile(stage.pool).plan_with)
            best = (cost, Eviction(Option(feasible, start, start + length, placement), victims, prices, gain))
        return best[1] if best else None

    def _needs_s(self, slots: Column, world: ReadOnlyWorld) -> Column:
        """Return the median remaining time of these slots of the pending table."""
        pending = world.pending
        found: Column = pending.p50_s[slots].copy()
        again = np.flatnonzero(pending.attained_device_s[slots] > 0)
        if len(again):
            some = slots[again]
            ran_s = pending.attained_device_s[some] / [width(pending.stages[slot]) for slot in some]
            found[again] = middle_left_s(pending.p50_s[some] + ran_s, pending.p90_s[some] + ran_s, ran_s)
        return found

    def _yielding(self, stage: Stage, world: ReadOnlyWorld) -> list[str]:
        """Return the projects whose stages may be stopped for this one."""
        levels = world.profile(stage.pool).levels
        drift = min((policy.hysteresis(stage.pool, world) for policy, _ in levels), default=np.inf)
        mine = world.taken(stage.project) / world.weight(stage.project)
        others = sorted(world.victim_index.projects)
        return [name for name in others if mine <= world.taken(name) / world.weight(name) + drift]
