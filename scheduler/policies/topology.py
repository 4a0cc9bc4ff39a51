"""Topology: devices of a node in one link group, or on one NUMA node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.matching import room
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Topology(Score):
    """Devices of one link group (NVLink, HCCS, a PCIe switch) communicate past the host; devices on two NUMA nodes
    communicate across the link between sockets. A place scores if all devices that would be taken share a link group
    or, for devices without reported links, a NUMA node.

    The engine itself keeps ranks of a gang in one domain, required or preferred, and the cores of a stage near its
    devices.
    """

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return 1 if all devices of each ask are together, less otherwise."""
        facts = room.columns(world.ledger.fleet)
        together, asks = np.zeros(len(rows)), 0
        if (facts.numa < 0).all() and (facts.group < 0).all():
            return together
        for i, ask in enumerate(feasible.alternative.asks):
            if not is_accelerator(ask.kind) or ask.count < 2:
                continue
            taken = room.taken(feasible, i, rows, world)[0]
            group, numa = facts.group[taken], facts.numa[taken]
            place = np.where((group >= 0).any(axis=1, keepdims=True), group, numa)
            together += (place == place[:, :1]).all(axis=1)
            asks += 1
        return together / max(asks, 1)
