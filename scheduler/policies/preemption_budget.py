"""Preemption budget: nobody is stopped for others again and again."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.model.types import Running
from scheduler.core.world.view import View


@dataclass(frozen=True)
class PreemptionBudget:
    """Protects a running stage that was stopped for others ``most`` times already."""

    most: int = 5

    def protects(self, running: Running, view: View) -> bool:
        return running.preemptions >= self.most
