"""Locality: nodes that already have the inputs of the stage."""

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
    """Inputs on a node (data set, base model, outputs of earlier stages) need not be transferred. The saving is counted
    in seconds: missing bytes by the bandwidth of the node, as declared or measured
    (:func:`scheduler.core.resources.topology.bandwidth`), or ``gbps`` Gbit/s if neither is known. An input of unknown
    size counts as the mean of the others; if no size is known each counts the same. That data must not leave a site is
    ensured by the engine itself."""

    gbps: float = field(default=10.0, metadata={"range": (0.001, 1e6)})

    def prefer(self, stage: Stage, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates | None:
        """Return the share of the time at each node that is not spent waiting for inputs, from 0 to 1; if no size is
        known, the share of the inputs that the node has."""
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
