"""First in, first out: the order of submission, and nobody passes."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.model.types import Reason, Stage
from scheduler.core.world.pending import Column, PendingTable
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.view import View


@dataclass(frozen=True)
class Fifo:
    """Earlier submissions first. Where ``strict``, nothing starts while a stage before it waits for devices."""

    strict: bool = True

    def order(self, stage: Stage, view: View) -> float:
        return view.now - stage.submitted_at

    def orders(self, pending: PendingTable, view: View) -> Column:
        return view.now - pending.submitted_at

    def admit(self, stage: Stage, feasible: FeasibleSet, view: View) -> Reason | None:
        ahead = view.ahead.get(stage.pool, 0)
        return Reason("PriorityBehind", {"ahead": ahead}) if self.strict and ahead else None
