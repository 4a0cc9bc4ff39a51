"""Oracle, remaining time: the stage with the least true remaining time goes first (SRTF). A reference for
simulations."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import true_left_s


@dataclass(frozen=True)
class OracleRemainingTime(Rank):
    """Minus the true remaining seconds. Only a simulated world knows them; elsewhere all stages are equal."""

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return -true_left_s(stage, world)
