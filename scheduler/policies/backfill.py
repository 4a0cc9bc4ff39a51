"""Backfill: who comes behind may go first only where that delays no promise."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Admit
from scheduler.core.model.types import Grant, Stage
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class Backfill(Admit):
    """Conservative: every entry of the timetable counts, not only the head of the queue (Mu'alem and Feitelson 2001).

    With a profile's ``depth`` of 1 only the head has an entry, and this is EASY backfill.
    """

    def fits(self, stage: Stage, grants: tuple[Grant, ...], until: float, world: ReadOnlyWorld) -> bool:
        return world.table.holds(grants, world.now, until)
