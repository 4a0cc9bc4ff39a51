"""Leftover: the placement that leaves least capacity that no request will be able to use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.matching import room, workload
from scheduler.core.matching.workload import WHOLE
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet

# Among placements that are equal to this share of a device, the fuller node is taken.
_NEARLY: Final = 1e-4


@dataclass(frozen=True)
class Leftover(Score):
    """The capacity that a node will probably leave unused in the end, in devices, and how much the placement adds to
    it.

    Two effects waste a device. *Its cores run out*: typical requests for the rest of a node would need some number of
    cores; the expected shortfall (of a normal variable) counts before and after, so requests with many cores go to
    nodes with plenty and modest ones to nodes with few, long before the last core is used. *A gap that no request
    fits*: a gap is worth what the best combination of common sizes fills of it; sizes that less than ``common`` of the
    requests ask for are too rare to wait for. Besides, adjacent whole devices are kept for requests of several, at
    ``gangs`` of what those would fill.
    """

    common: float = field(default=0.015, metadata={"range": (0.0, 1.0)})
    gangs: float = field(default=0.1, metadata={"range": (0.0, 1.0)})

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return the devices lost, negative."""
        usual = workload.in_force(world)
        lost = np.zeros(len(rows))
        for kind in room.accelerators(world):
            place = room.room(feasible, rows, world, kind)
            wanted = workload.demand(usual, kind, self.common, place.free.shape[1])
            lost += _stranded(place.left, place.cores_left, wanted) - _stranded(place.free, place.cores, wanted)
            if kind in room.asked_kinds(feasible):
                lost += (wanted.fill[_whole(place.free)] - wanted.fill[_whole(place.left)]).sum(axis=1) / WHOLE
                lost += self.gangs * (wanted.gangs[_wholes(place.free)] - wanted.gangs[_wholes(place.left)])
            lost += _NEARLY * place.left.sum(axis=1) / WHOLE
            if wanted.cores_milli:
                lost += _NEARLY * place.cores_left / wanted.cores_milli
        return -lost


def _stranded(free: Rows, cores: Rows, wanted: workload.UsualDemand) -> Rates:
    """Return how many of the free devices will probably lack cores: the expected shortfall divided by the cores per
    device."""
    devices = free.sum(axis=1) / WHOLE
    if not wanted.cores_milli:
        return np.zeros(len(devices))
    spread = np.maximum(wanted.spread_milli * np.sqrt(devices), 1.0)
    short = wanted.cores_milli * devices - cores
    z = short / spread
    # The mean of the positive part of a normal variable; its distribution function to within 0.0003 (Page 1977).
    below = 0.5 * (1.0 + np.tanh(0.7978845608 * (z + 0.044715 * z * z * z)))
    density = 0.3989422804 * np.exp(-0.5 * z * z)
    found: Rates = np.maximum(short * below + spread * density, 0.0) / wanted.cores_milli
    return np.where(devices > 0, np.minimum(found, devices), 0.0)


def _whole(free: Rows) -> Rows:
    return np.minimum(free, WHOLE)


def _wholes(free: Rows) -> Rows:
    wholes: Rows = (free >= WHOLE).sum(axis=1)
    return wholes
