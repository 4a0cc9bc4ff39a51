"""Power: machines that are awake and in use, and devices with the most work per watt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.core.hooks import Score
from scheduler.core.matching import room
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.resources.fleet import Fleet, Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet

_RATES: Final = ("bf16_tflops", "fp16_tflops", "fp32_tflops")


@dataclass(frozen=True)
class Power(Score):
    """A machine uses most of its power by being up at all. So the first criterion is to wake none, the second to use
    those in use and let the others sleep, the third to take the device with the most work per watt.

    A sleeping node gets work only if no awake one fits.
    """

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return 4 for being awake, 2 for being in use, up to 1 for work per watt."""
        fleet = world.ledger.fleet
        nodes = feasible.places.nodes[rows]
        awake = np.array([fleet.nodes[node].awake for node in nodes.tolist()], dtype=np.float64)
        facts = room.columns(fleet)
        in_use = np.zeros(len(rows), dtype=np.bool_)
        for kind in facts.kinds:
            in_use |= room.free(world, nodes, kind).sum(axis=1) < facts.size(kind)[nodes]
        return 4.0 * awake + 2.0 * in_use + _per_watt(feasible, rows, fleet)


def _per_watt(feasible: FeasibleSet, rows: Rows, fleet: Fleet) -> Rates:
    """Return the work per watt of the first accelerator of each place, relative to the best of all that fit."""
    ask = next((i for i, one in enumerate(feasible.alternative.asks) if is_accelerator(one.kind)), None)
    if ask is None:
        return np.zeros(len(rows))
    known: dict[tuple[str, str], float] = {}
    for row in np.unique(feasible.rows[ask][:, 0]).tolist():
        device = fleet.devices[row]
        rate = next((device.features[name] for name in _RATES if device.features.get(name)), 0.0)
        watts = device.features.get("watts", 0.0)
        known.setdefault((device.vendor, device.model), rate / watts if watts > 0 else 0.0)
    best = max(known.values(), default=0.0) or 1.0
    first = [fleet.devices[row] for row in feasible.rows[ask][rows, 0].tolist()]
    return np.array([known[one.vendor, one.model] / best for one in first])
