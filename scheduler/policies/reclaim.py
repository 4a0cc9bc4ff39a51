"""Reclaim: takes back lent quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from scheduler.core.hooks import Eviction, Victims
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Placement, Quota, Running, Stage
from scheduler.core.resources.holdings import amount
from scheduler.core.resources.ledger import Ledger
from scheduler.core.resources.match import grant
from scheduler.core.resources.speed import deciding
from scheduler.core.world import price
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import Option, grants_of
from scheduler.policies.quota import asks


@dataclass(frozen=True)
class Reclaim(Victims):
    """For a project that asks for no more than its nominal quota, stops stages of projects of its cohort that hold more
    than theirs, whatever the priorities (Kueue's reclaim).

    Of all sets of such stages the one that loses least work is taken, and no project is brought below its nominal
    quota. ``patience_s`` is how long it waits for a device to become free by itself; ``per_cycle`` limits how many
    stages are stopped at once. Of all places, the ``look`` most promising for each rank are evaluated exactly.
    """

    patience_s: float = 0.0
    per_cycle: int = 32
    look: int = 16
    by_project: ClassVar[bool] = True

    def could(self, stage: Stage, world: ReadOnlyWorld) -> bool:
        """Whether its project is within its nominal quota, and another of its cohort beyond its own."""
        if len(world.chosen_victims) >= self.per_cycle or world.now - stage.eligible_at < self.patience_s:
            return False
        for right in world.rights.of(stage.project):
            is_within = right.nominal_milli is not None and world.held.of(right) < right.nominal_milli
            if right.cohort and is_within and self._borrowers(right, world):
                return True
        return False

    def victims(
        self, stage: Stage, feasible_sets: Sequence[FeasibleSet], wait_s: float, world: ReadOnlyWorld
    ) -> Eviction | None:
        """Return the stages to stop, for the alternative that loses least; ``None`` if the project has no claim to
        more."""
        best: tuple[float, Eviction] | None = None
        for feasible in feasible_sets:
            right = self._own(stage, feasible, world)
            found = self._choose(stage, feasible, right, world) if right else None
            if found is None or len(found[1]) + len(world.chosen_victims) > self.per_cycle:
                continue
            placement, victims = found
            prices = tuple(price.price(one, world.now) for one in victims)
            if best is None or sum(prices) < best[0]:
                start = world.now + max(one.grace_s for one in victims)
                length = world.length_s(stage, feasible, world.profile(stage.pool).plan_with)
                gain = max(
                    sum(prices), price.gain(stage.priority, price.breadth(feasible.alternative, stage.nodes), wait_s, 0)
                )
                best = (
                    sum(prices),
                    Eviction(Option(feasible, start, start + length, placement), victims, prices, gain),
                )
        return best[1] if best else None

    def _own(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Quota | None:
        """Return the quota by which the stage may reclaim what it needs here, if it fits into the nominal quotas of its
        project for the accelerators of this alternative (for the cores, if it needs none)."""
        kind = next((ask.kind for ask in feasible.alternative.asks if is_accelerator(ask.kind)), "cpu")
        rights = [one for one in world.rights.of(stage.project) if one.kind == kind and one.nominal_milli is not None]
        mine = [(one, asked) for one in rights if (asked := asks(stage, feasible, one, world))]
        if not all(world.held.of(one) + asked <= (one.nominal_milli or 0) for one, asked in mine):
            return None
        # The narrowest: what is lent of a model is reclaimed from projects that hold that model.
        return min(
            (one for one, _ in mine if one.cohort), key=lambda one: (not one.model, one.normalised), default=None
        )

    def _borrowers(self, right: Quota, world: ReadOnlyWorld) -> dict[str, int]:
        """Return what each project of the same cohort holds beyond its nominal quota; none for an unlimited one."""
        beyond = {}
        for one in world.rights.others(right) if right.cohort else ():
            if one.nominal_milli is not None and (more := world.held.of(one) - one.nominal_milli) > 0:
                beyond[one.project] = more
        return beyond

    def _choose(
        self, stage: Stage, feasible: FeasibleSet, right: Quota, world: ReadOnlyWorld
    ) -> tuple[Placement, tuple[Running, ...]] | None:
        beyond = self._borrowers(right, world)
        if not beyond:
            return None
        lines, on_node = self._promising(stage, feasible, beyond, world)
        left, chosen, victims = dict(beyond), [], dict[str, Running]()
        with world.trial() as ledger:
            for line in lines:
                here = on_node.get(int(feasible.places.nodes[line]), [])
                needed = self._least(feasible, line, here, left, right, ledger, world.now)
                if needed is None:
                    continue
                victims.update((one.id, one) for one in needed)
                rank = grant(feasible.alternative.asks, feasible.places[line], ledger)
                assert rank is not None, "it was just made to fit"
                ledger.claim(rank)
                chosen.append((feasible.places[line].node.id, rank))
                if len(chosen) == stage.nodes:
                    break
        if len(chosen) < stage.nodes or not victims:
            return None
        nodes, ranks = tuple(node for node, _ in chosen), tuple(rank for _, rank in chosen)
        return Placement(feasible.alternative.index, nodes, ranks), tuple(victims[name] for name in sorted(victims))

    def _promising(
        self, stage: Stage, feasible: FeasibleSet, beyond: Mapping[str, int], world: ReadOnlyWorld
    ) -> tuple[list[int], dict[int, list[Running]]]:
        """Return the places where least would be lost for each device given back, first those where nothing would; and
        the stages that could be stopped on each node."""
        victim_index, nodes = world.victim_index, feasible.places.nodes
        slots = victim_index.of(beyond, world.now)
        world.refresh(feasible, world.profile(stage.pool))
        count = len(world.fleet.nodes)
        at = deciding(feasible.alternative.asks)
        need = feasible.alternative.asks[at].count * feasible.alternative.asks[at].milli
        gives = np.bincount(victim_index.node[slots], victim_index.gives[slots], count)
        rate = np.full(count, np.inf)
        np.minimum.at(
            rate,
            victim_index.node[slots],
            victim_index.prices(slots, world.now) / np.maximum(victim_index.gives[slots], 1.0),
        )
        free = np.maximum(world.ledger.milli[feasible.rows[at]], 0).sum(axis=1)
        cost = np.where(feasible.fits, 0.0, np.where(free + gives[nodes] >= need, rate[nodes], np.inf))
        found = np.flatnonzero(np.isfinite(cost))
        lines = found[np.argsort(cost[found], kind="stable")][: self.look * stage.nodes].tolist()
        chosen = {int(nodes[line]) for line in lines}
        on_node: dict[int, list[Running]] = {}
        for slot in slots[np.isin(victim_index.node[slots], list(chosen))].tolist():
            one: Running = victim_index.stages[slot]
            if not any(policy.protects(one, world) for policy in world.profile(one.pool).protects):
                on_node.setdefault(int(victim_index.node[slot]), []).append(one)
        return lines, on_node

    def _least(
        self,
        feasible: FeasibleSet,
        line: int,
        running: list[Running],
        left: dict[str, int],
        right: Quota,
        ledger: Ledger,
        now: float,
    ) -> list[Running] | None:
        """Return the borrowers of one place whose end makes the asks fit, cheapest first; None, and no change, if none
        suffice.

        What they give back is subtracted from ``left``, and stays released in the ledger.
        """
        asks, place = feasible.alternative.asks, feasible.places[line]
        if grant(asks, place, ledger) is not None:
            return []
        mark, before = ledger.checkpoint(), dict(left)
        stopped: list[Running] = []
        for one in sorted(running, key=lambda one: (price.price(one, now), one.id)):
            devices = ledger.devices
            size = sum(amount(right, devices[g.device], g.milli) for g in grants_of(one) if g.device in devices)
            if left.get(one.project, 0) < size:
                continue
            left[one.project] -= size
            ledger.release(grants_of(one))
            stopped.append(one)
            if grant(asks, place, ledger) is not None:
                return stopped
        ledger.rollback(mark)
        left.clear()
        left.update(before)
        return None
