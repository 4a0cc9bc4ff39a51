"""Oracle, remaining time: who will really be done first goes first (SRTF). For simulated worlds, as a yardstick."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.model.types import Stage
from scheduler.core.resources.service import true_left_s
from scheduler.core.world.view import View


@dataclass(frozen=True)
class OracleRemainingTime:
    """Minus the seconds that are truly left. Only a simulated world knows them; elsewhere all stages are equal."""

    def order(self, stage: Stage, view: View) -> float:
        return -true_left_s(stage, view)
