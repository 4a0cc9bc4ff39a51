"""Backfill: a stage further back may start first only if that delays no reservation."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Admit
from scheduler.core.model.types import Grant, Stage
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class Backfill(Admit):
    """Conservative backfill: every reservation of the timetable counts, not only that of the head of the queue (Mu'alem
    and Feitelson 2001).

    With a profile's ``depth`` of 1 only the head has a reservation, and this is EASY backfill.
    """

    def fits(self, stage: Stage, grants: tuple[Grant, ...], until: float, world: ReadOnlyWorld) -> bool:
        return world.table.holds(grants, world.now, until, stage.reservation)
