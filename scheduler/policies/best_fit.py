"""Best fit: the node with the least left, cores and accelerators counted alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.matching import room
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class BestFit(Score):
    """The baseline of placement studies: minimises the sum over resources of what stays free, each as a share of the
    largest amount on any node. Unlike *pack* it weighs a core by the scarcity of cores, not by its price."""

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return scores from -1 to 0. The request takes the same everywhere, so only what is free counts."""
        columns = room.columns(world.ledger.fleet)
        nodes = feasible.places.nodes[rows]
        left = np.zeros(len(rows))
        for kind in columns.kinds:
            left += room.free(world, nodes, kind).sum(axis=1) / max(int(columns.size(kind).max(initial=0)), 1)
        return -left / max(len(columns.kinds), 1)
