"""Shortest predicted first: the stage with the least predicted remaining work goes first."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.pending import Column, PendingTable
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import OVERRUN_SHARE, predicted_left_s, width


@dataclass(frozen=True)
class ShortestPredicted(Rank):
    """Minus the predicted remaining seconds times the devices to the power of ``breadth`` (Helios QSSF, SC 2021).

    With a ``breadth`` of 0 only time counts, with 1 all device-seconds do. A stage beyond its prediction is expected to
    need a fifth more of what it has had.
    """

    breadth: float = field(default=1.0, metadata={"range": (0.0, 10.0)})

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return -predicted_left_s(stage, world) * float(width(stage) ** self.breadth)

    def ranks(self, pending: PendingTable, slots: Column, world: ReadOnlyWorld) -> Column:
        widths = np.array([width(request) for request, _ in pending.tiers] or [1.0])[pending.tier[slots]]
        overrun_s = OVERRUN_SHARE * pending.attained_device_s[slots] / widths
        left_s: Column = np.maximum(np.maximum(pending.p50_s[slots], overrun_s), 1.0)
        return -left_s * widths**self.breadth
