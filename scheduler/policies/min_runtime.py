"""Minimum run time: who has just begun is left alone for a while."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Victims
from scheduler.core.model.types import Running
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class MinRuntime(Victims):
    """Protects a running stage from being stopped for another for ``least_s`` after its start, whatever that gains: a
    stage that is stopped before it has done anything costs a start and gives nothing."""

    least_s: float = 600.0

    def protects(self, running: Running, world: ReadOnlyWorld) -> bool:
        return world.now - running.started_at < self.least_s
