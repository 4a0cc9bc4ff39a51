"""Oracle, remaining service: who needs the least more of the cluster goes first (SRSF). A yardstick for simulations."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.model.types import Stage
from scheduler.core.resources.service import true_left_s, width
from scheduler.core.world.view import View


@dataclass(frozen=True)
class OracleRemainingService:
    """Minus the device-seconds that are truly left. Only a simulated world knows them; elsewhere width decides."""

    def order(self, stage: Stage, view: View) -> float:
        return -true_left_s(stage, view) * width(stage)
