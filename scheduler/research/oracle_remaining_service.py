"""Oracle, remaining service: the stage with the least true remaining device-seconds goes first (SRSF). A reference for
simulations."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import true_left_s, width


@dataclass(frozen=True)
class OracleRemainingService(Rank):
    """Minus the true remaining device-seconds. Only a simulated world knows them; elsewhere width decides."""

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return -true_left_s(stage, world) * width(stage)
