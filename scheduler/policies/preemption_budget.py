"""Preemption budget: limits how often a stage is preempted."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Victims
from scheduler.core.model.types import Running
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class PreemptionBudget(Victims):
    """Protects a running stage that was preempted ``most`` times already."""

    most: int = 5

    def protects(self, running: Running, world: ReadOnlyWorld) -> bool:
        return running.preemptions >= self.most
