"""Fragmentation: the placement that takes least from what typical requests can still use."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.matching import room, workload
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Fragmentation(Score):
    """Fragmentation gradient descent (FGD; Weng et al., ATC 2023): by how much the placement reduces free capacity that
    a request of the typical workload cannot use.

    The workload is represented by the most frequent requests that make up the share ``covers`` of it. The gradient goes
    through a logistic function and is then cut to one of ``steps`` levels (0: not at all), as in the published
    simulator: small differences count as equal, and among equals the first node by name is taken. Without it each
    request goes to the marginally best node, many nodes are broken into at once, and 1 % less of the cluster is used.
    """

    covers: float = field(default=0.95, metadata={"range": (0.01, 1.0)})
    steps: int = field(default=100, metadata={"range": (0, 1_000_000)})

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return scores from 0 to 1, bigger is better."""
        usual = workload.in_force(world)
        gain = np.zeros(len(rows))
        for kind in room.accelerators(world):
            place = room.room(feasible, rows, world, kind)
            table = workload.usable(usual, kind, place.free.shape[1], self.covers)
            kept = table.of(place.left, place.cores_left) - table.of(place.free, place.cores)
            gain += (place.used + kept) / workload.WHOLE
        score: Rates = 1.0 / (1.0 + np.exp(-gain))
        return np.floor(score * self.steps) / self.steps if self.steps else score
