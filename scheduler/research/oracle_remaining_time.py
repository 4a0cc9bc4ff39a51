"""Oracle, remaining time: who will really be done first goes first (SRTF). For simulated worlds, as a yardstick."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import true_left_s


@dataclass(frozen=True)
class OracleRemainingTime(Rank):
    """Minus the seconds that are truly left. Only a simulated world knows them; elsewhere all stages are equal."""

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return -true_left_s(stage, world)
