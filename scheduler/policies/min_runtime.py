"""Minimum run time: a stage that has just started is not preempted."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Victims
from scheduler.core.model.types import Running
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class MinRuntime(Victims):
    """Protects a running stage from being preempted for ``least_s`` seconds after its start, whatever the gain: a stage
    that is stopped before it has done anything costs a start and produces nothing."""

    least_s: float = 600.0

    def protects(self, running: Running, world: ReadOnlyWorld) -> bool:
        return world.now - running.started_at < self.least_s
