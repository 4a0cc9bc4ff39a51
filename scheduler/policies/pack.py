"""Pack: fills nodes that are in use already, so that large gangs find whole nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.model.types import Grant, Node
from scheduler.core.resources.speed import worth
from scheduler.core.world.pending import Column
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Pack(Score):
    """Best fit: the node whose remaining free devices are worth least. Work without accelerators therefore avoids nodes
    with free accelerators."""

    def score(self, node: Node, grants: tuple[Grant, ...], world: ReadOnlyWorld) -> float:
        left = sum(worth(device, max(0, world.ledger.free(device.id)[0])) for device in node.devices)
        return -(left - sum(worth(world.ledger.devices[one.device], one.milli) for one in grants))

    def scores(self, feasible: FeasibleSet, rows: np.ndarray, world: ReadOnlyWorld) -> Column:
        """Return scores. The request takes the same everywhere on one device model, so only what is free counts."""
        return -world.ledger.worth_left(feasible.places.nodes[rows])
