"""Heterogeneity: of several device models, the one with the earliest predicted finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.hooks import Score
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.reservation import Option


@dataclass(frozen=True)
class Heterogeneity(Score):
    """Predicted finish by the table of speeds alone, whatever a device costs; with *gang* there is an alternative for
    each model. In a profile that rotates, the first in the order has the first choice (Gavel's heterogeneity-aware
    policies, OSDI 2020)."""

    def choose(self, stage: Stage, options: Sequence[Option], world: ReadOnlyWorld) -> Option:
        return min(options, key=lambda option: (option.end_at, option.start_at, option.feasible.alternative.index))
