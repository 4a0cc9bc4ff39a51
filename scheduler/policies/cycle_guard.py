"""Cycle guard: two who stop each other do so once each."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.model.types import Running
from scheduler.core.world.view import View


@dataclass(frozen=True)
class CycleGuard:
    """Protects a running stage that was stopped for others which were stopped for it, directly or through more of them.

    Priority and quota may disagree for ever: the more urgent one takes what the other, within its nominal quota, takes
    back. Once that has gone round, whoever runs goes on to its end.
    """

    def protects(self, running: Running, view: View) -> bool:
        return running.in_circle
