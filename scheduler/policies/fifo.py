"""First in, first out: the order of submission, without overtaking."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Admit, Rank
from scheduler.core.model.types import Reason, Stage
from scheduler.core.world.pending import Column, PendingTable
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class Fifo(Rank, Admit):
    """Earlier submissions first. If ``strict``, nothing starts while a stage before it waits for devices."""

    strict: bool = True

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return world.now - stage.submitted_at

    def ranks(self, pending: PendingTable, slots: Column, world: ReadOnlyWorld) -> Column:
        return world.now - pending.submitted_at[slots]

    def admit(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Reason | None:
        ahead = world.ahead.get(stage.pool, 0)
        return Reason("PriorityBehind", {"ahead": ahead}) if self.strict and ahead else None
