"""Locality: where what the stage reads already lies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.matching import room
from scheduler.core.model.types import Stage
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Locality(Score):
    """What lies on a node need not travel there: data set, base model, what an earlier stage left. What it saves is
    counted in seconds: bytes that are missing by the bandwidth of the node, as declared or measured
    (:func:`scheduler.core.resources.topology.bandwidth`), ``gbps`` Gbit/s where neither is known. An input of unknown
    size counts as the mean of the others; where no size is known each counts the same. That data must not leave a site
    is the engine's own law."""

    gbps: float = field(default=10.0, metadata={"range": (0.001, 1e6)})

    def prefer(self, stage: Stage, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates | None:
        """The part of the time at each node that is not spent on waiting for inputs, from 0 to 1; the part of the
        inputs that the node has where no size is known."""
        if not stage.inputs:
            return None
        facts = room.columns(world.ledger.fleet)
        nodes = feasible.places.nodes[rows]
        sizes = dict(stage.input_bytes)
        usual = sum(sizes.values()) / len(sizes) if sizes else 1.0
        missing = np.zeros(len(rows))
        for digest in stage.inputs:
            missing += ~facts.has(digest)[nodes] * sizes.get(digest, usual)
        if not sizes:
            return 1.0 - missing / len(stage.inputs)
        gbps = facts.gbps[nodes]
        transfer_s = missing * 8e-9 / np.where(gbps > 0, gbps, self.gbps)
        length_s = world.length_s(stage, feasible, "p50")
        return length_s / (length_s + transfer_s)
