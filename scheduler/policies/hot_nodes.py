"""Hot nodes: new stages avoid overloaded nodes, and running stages may move away from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.hooks import Score, Victims
from scheduler.core.matching import room
from scheduler.core.matching.load import SLACK, share
from scheduler.core.model.clauses import Said, clause, several
from scheduler.core.model.types import Placement, Running
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world import price
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class HotNodes(Score, Victims):
    """On a node of load 2 tasks wait as long for cores, disks or memory as they run, so everything takes twice as long:
    the load is the product of queue length, service time and utilisation. A start scores a place down by how much
    longer it would take there; the first quarter is ignored, because a merely full node reaches that too.

    A running stage moves if the time that it gains is worth its price. Against oscillation, the node that it leaves
    must be hotter than its target by more than ``threshold``, and no colder once its own share of the load has moved;
    and for ``settle_s`` neither node may have had a start or a stop, so that its load is known. Each such move lowers
    the hotter of the two nodes and leaves the other no hotter than that, so a sequence of moves ends while loads are
    constant.
    """

    threshold: float = field(default=0.5, metadata={"range": (0.0, 100.0)})
    settle_s: float = field(default=300.0, metadata={"range": (0.0, 86_400.0)})

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return minus how much longer a stage would take at each place, as a share, the load of the stage itself
        included."""
        load = room.columns(world.ledger.fleet).load
        if not load.any():
            return np.zeros(len(rows))
        nodes = feasible.places.nodes[rows]
        cores = room.columns(world.ledger.fleet).size("cpu")[nodes]
        own = sum(ask.count * ask.milli for ask in feasible.alternative.asks if ask.kind == "cpu")
        return -np.maximum(load[nodes] + own / np.maximum(cores, 1) - 1.0 - SLACK, 0.0)

    def evacuates(self, running: Running, world: ReadOnlyWorld) -> tuple[Said, float]:
        """Return which of its nodes are hot, and its gain on an idle node."""
        nodes = [world.nodes[name] for name in running.placement.nodes if name in world.nodes]
        hot = [node for node in nodes if node.load > 1.0 + self.threshold]
        if not hot:
            return (), 0.0
        names = ", ".join(node.name for node in hot)
        return (clause(several(len(hot), "NodeHot", "NodesHot"), nodes=names),), self._worth(running, 1.0, world)

    def gains(self, running: Running, placement: Placement, world: ReadOnlyWorld) -> float:
        """Return its gain by the lower load there."""
        here = running.placement
        if not set(here.nodes).isdisjoint(placement.nodes) or any(name not in world.nodes for name in here.nodes):
            return 0.0
        shares = [share(rank, name, world) for name, rank in zip(here.nodes, here.grants, strict=True)]
        before, own = max((world.nodes[name].load, own) for name, own in zip(here.nodes, shares, strict=True))
        there = list(zip(placement.nodes, placement.grants, strict=True))
        cold = max(world.nodes[name].load for name, _ in there)
        after = max(world.nodes[name].load + share(rank, name, world) for name, rank in there)
        if before - cold <= self.threshold or before - own < after:
            return 0.0
        return self._worth(running, max(after, 1.0), world)

    def _worth(self, running: Running, after: float, world: ReadOnlyWorld) -> float:
        """Return the value of going on under a load of ``after``: the seconds saved of its remaining time, weighted."""
        before = max([1.0, *(world.nodes[name].load for name in running.placement.nodes if name in world.nodes)])
        left_s = max(world.finish.get(running.id, world.now) - world.now, 0.0)
        return max(before - after, 0.0) * left_s * price.weight(running.priority) * price.width(running)
