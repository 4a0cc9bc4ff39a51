"""Topology: several devices of a node on one NUMA node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core import room
from scheduler.core.fleet import Rates, Rows
from scheduler.core.shape import Way
from scheduler.core.view import View


@dataclass(frozen=True)
class Topology:
    """Devices on two NUMA nodes talk across the link between the sockets: a place counts for which all devices that
    would be taken stand on one, or nobody knows where they stand.

    Ranks of a gang are kept inside one domain, required or preferred, by the engine itself; so are the cores of a stage
    near its devices.
    """

    def scores(self, way: Way, rows: Rows, view: View) -> Rates:
        """1 where all devices of each ask share a NUMA node, less where they do not."""
        facts = room.columns(view.ledger.fleet)
        together, asks = np.zeros(len(rows)), 0
        if (facts.numa < 0).all():
            return together
        for i, ask in enumerate(way.alternative.asks):
            if ask.kind == "cpu" or ask.count < 2:
                continue
            numa = facts.numa[room.taken(way, i, rows, view)[0]]
            together += (numa == numa[:, :1]).all(axis=1)
            asks += 1
        return together / max(asks, 1)
