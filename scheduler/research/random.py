"""Random: any place that fits, as a baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.model.types import Stage
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Random(Score):
    """Each stage gives every node a pseudo-random number, by ``seed`` and the stage's id."""

    seed: int = field(default=0, metadata={"range": (0, 2**32 - 1)})

    def prefer(self, stage: Stage, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return scores from 0 to 1, evenly distributed."""
        start = np.uint64(crc32(stage.id.encode(), self.seed)) << np.uint64(32)
        mixed = (feasible.places.nodes[rows].astype(np.uint64) + start) * np.uint64(0x9E3779B97F4A7C15)
        # The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: Rates = (mixed ^ (mixed >> np.uint64(31))) / np.float64(2**64)
        return found
