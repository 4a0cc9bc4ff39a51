"""Elastic: elastic stages grow when that pays, and shrink before other stages are stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.core.hooks import Eviction, Victims
from scheduler.core.model.types import Grant, Placement, Running, Stage
from scheduler.core.planning.resize import is_movable, left_s
from scheduler.core.resources import elastic, topology
from scheduler.core.resources.ledger import Ledger
from scheduler.core.resources.match import Candidate, grant
from scheduler.core.world import price
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import Option


@dataclass(frozen=True)
class Elastic(Victims):
    """A resize stops a stage and starts it again, so it must gain more than it costs.

    For a waiting stage, stages of its own or a lower class shrink towards their least size, the cheapest first and no
    more than needed. A stage grows once it has run for ``settle_s``, by at least ``worthwhile`` of its rate, if its
    gain until its end or within ``horizon_s`` is more than its work since the last checkpoint and the restart. Within
    ``settle_s`` it shrinks for a higher class only. Each time that it shrank within ``horizon_s`` doubles its wait
    before it grows, up to ``most_doublings`` times, against flapping.
    """

    settle_s: float = 60.0
    worthwhile: float = field(default=0.1, metadata={"range": (0.0, 10.0)})
    horizon_s: float = 3600.0
    factor: float = 1.0
    most_doublings: int = field(default=5, metadata={"range": (0, 20)})

    def could(self, stage: Stage, world: ReadOnlyWorld) -> bool:
        """Whether any elastic stage can shrink."""
        return any(self._can_shrink(world.running[name], stage, world) for name in world.elastic)

    def victims(
        self, stage: Stage, feasible_sets: Sequence[FeasibleSet], wait_s: float, world: ReadOnlyWorld
    ) -> Eviction | None:
        """Return which stages shrink by how much, for the alternative with the least cost."""
        shrinkable = [
            one for name in sorted(world.elastic) if self._can_shrink(one := world.running[name], stage, world)
        ]
        shrinkable.sort(key=lambda one: (one.priority, price.price(one, world.now), one.id))
        best: tuple[float, Eviction] | None = None
        for feasible in feasible_sets:
            with world.trial() as ledger:
                found = self._on(stage, feasible, shrinkable, ledger, world)
            if found is None:
                continue
            placement, sizes = found
            victims = tuple(one for one in shrinkable if one.id in sizes)
            prices = tuple(price.price(one, world.now) for one in victims)
            delay_s = max(one.grace_s for one in victims)
            gain = price.gain(stage.priority, price.breadth(feasible.alternative, stage.nodes), wait_s, delay_s)
            if gain < self.factor * sum(prices) or (best is not None and best[0] <= sum(prices)):
                continue
            start = world.now + delay_s
            length = world.length_s(stage, feasible, world.profile(stage.pool).plan_with)
            option = Option(feasible, start, start + length, placement)
            best = (sum(prices), Eviction(option, victims, prices, gain, tuple(sizes[one.id] for one in victims)))
        return best[1] if best else None

    def settled_at(self, running: Running, world: ReadOnlyWorld) -> float:
        """Return the time from which it may grow."""
        times = sum(world.now - at < self.horizon_s for at in running.gave_back_at)
        return running.started_at + self.settle_s * float(2 ** min(times, self.most_doublings))

    def stakes(self, running: Running, size: int, world: ReadOnlyWorld) -> tuple[float, float]:
        """Return the cost and gain of going on with ``size`` nodes, in weighted device-seconds at its present rate."""
        was = len(running.placement.nodes)
        rate = elastic.faster(was, size, running.scaling)
        saved_at, again_s = price.at_stake(running)
        span_s = min(left_s(running, world), self.horizon_s)
        scale = price.weight(running.priority) * price.width(running)
        lost = scale * (max(0.0, world.now - saved_at) + again_s * rate)
        return lost, scale * (rate - 1.0) * span_s if rate >= 1.0 + self.worthwhile else 0.0

    def _can_shrink(self, one: Running, stage: Stage, world: ReadOnlyWorld) -> bool:
        if len(one.placement.nodes) <= one.least_nodes or one.priority > stage.priority or not is_movable(one, world):
            return False
        return one.priority < stage.priority or world.now - one.started_at >= self.settle_s

    def _on(
        self, stage: Stage, feasible: FeasibleSet, shrinkable: Sequence[Running], ledger: Ledger, world: ReadOnlyWorld
    ) -> tuple[Placement, dict[str, int]] | None:
        """Return a placement, and the remaining size of each stage that shrinks. Leaves the ledger as if they had
        shrunk."""
        if self._placed(stage, feasible, world) is not None:
            return None  # it fits anyway: it waits for another reason, and shrinking would not help
        sizes: dict[str, int] = {}
        for one in shrinkable:
            for rank in range(len(one.placement.nodes) - 1, one.least_nodes - 1, -1):
                ledger.release(one.placement.grants[rank])
                sizes[one.id] = rank
                if self._placed(stage, feasible, world) is not None:
                    return self._spared(stage, feasible, shrinkable, sizes, ledger, world)
        return None

    def _spared(
        self,
        stage: Stage,
        feasible: FeasibleSet,
        shrinkable: Sequence[Running],
        sizes: dict[str, int],
        ledger: Ledger,
        world: ReadOnlyWorld,
    ) -> tuple[Placement, dict[str, int]]:
        """Return the same without stages whose nodes are not needed."""
        for one in shrinkable:
            if one.id not in sizes or len(sizes) == 1:
                continue
            given = [each for rank in one.placement.grants[sizes[one.id] :] for each in rank]
            ledger.claim(given)
            if self._placed(stage, feasible, world) is None:
                ledger.release(given)
            else:
                del sizes[one.id]
        placement = self._placed(stage, feasible, world)
        assert placement is not None, "what was given is still free"
        return placement, sizes

    def _placed(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Placement | None:
        """Return where the stage fits in the present ledger, best placement first."""
        world.refresh(feasible, world.profile(stage.pool))
        if feasible.count < stage.nodes:
            return None
        passed: list[tuple[Candidate, tuple[Grant, ...]]] = []
        for line in feasible.best_first():
            grants = grant(feasible.alternative.asks, feasible.places[line], world.ledger)
            if grants is not None:
                passed.append((feasible.places[line], grants))
            if stage.nodes == 1 and passed:
                break
        chosen = topology.gather([(place.node, grants) for place, grants in passed], stage.nodes, stage.within)
        if chosen is None:
            return None
        nodes, ranks = tuple(node.id for node, _ in chosen), tuple(grants for _, grants in chosen)
        return Placement(feasible.alternative.index, nodes, ranks)
