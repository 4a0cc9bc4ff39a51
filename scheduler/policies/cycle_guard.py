"""Cycle guard: stages that preempt each other do so once each."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Victims
from scheduler.core.model.types import Running
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class CycleGuard(Victims):
    """Protects a running stage that was stopped for others which were stopped for it, directly or through more of them.

    Priority and quota may disagree for ever: the stage of higher priority takes what the other, within its nominal
    quota, takes back. After one round the running stage runs to its end.
    """

    def protects(self, running: Running, world: ReadOnlyWorld) -> bool:
        return running.in_circle
