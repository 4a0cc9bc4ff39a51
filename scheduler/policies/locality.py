"""Locality: where what the stage reads already lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core import room
from scheduler.core.fleet import Rates, Rows
from scheduler.core.shape import Way
from scheduler.core.types import Stage
from scheduler.core.view import View


@dataclass(frozen=True)
class Locality:
    """What lies on a node need not travel there: bundle, data set, base model, last checkpoint. Each input counts the
    same, because its size is not known here. That data must not leave a site is the engine's own law."""

    def prefer(self, stage: Stage, way: Way, rows: Rows, view: View) -> Rates | None:
        """The part of the stage's inputs that each node has, from 0 to 1."""
        if not stage.inputs:
            return None
        facts = room.columns(view.ledger.fleet)
        nodes = way.places.nodes[rows]
        found = np.zeros(len(rows))
        for digest in stage.inputs:
            found += facts.has(digest)[nodes]
        return found / len(stage.inputs)
