"""Spread: the node with the most left, so that neighbours disturb each other least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.matching import room
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Spread(Score):
    """For services and for work that shares memory bandwidth or a network card: the node with the largest free share of
    the requested kind of device. It breaks into every node, so large gangs find no whole one."""

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return the free share, from 0 to 1."""
        columns = room.columns(world.ledger.fleet)
        nodes = feasible.places.nodes[rows]
        kinds = room.asked_kinds(feasible) or ("cpu",)
        share = np.zeros(len(rows))
        for kind in kinds:
            share += room.free(world, nodes, kind).sum(axis=1) / np.maximum(columns.size(kind)[nodes], 1)
        return share / len(kinds)
