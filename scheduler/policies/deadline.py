"""Deadline: a stage with a deadline goes first while it can still meet it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.pending import Column, PendingTable
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import predicted_left_s


@dataclass(frozen=True)
class Deadline(Rank):
    """From 0 to 1: how little slack is left between the predicted end of a stage that starts now and its deadline.

    It rises from ``ahead_s`` seconds before the last sufficient start, and is 1 at that time. A deadline that cannot be
    met any more counts 0, because it would only delay others. Without a deadline it is 0.
    """

    ahead_s: float = field(default=86_400.0, metadata={"range": (1.0, 31_622_400.0)})

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        if stage.deadline_at is None:
            return 0.0
        slack_s = stage.deadline_at - world.now - predicted_left_s(stage, world)
        if slack_s < 0:
            return 0.0
        return max(0.0, 1.0 - slack_s / self.ahead_s)

    def ranks(self, pending: PendingTable, slots: Column, world: ReadOnlyWorld) -> Column:
        found = np.zeros(len(slots))
        for at in np.flatnonzero(np.isfinite(pending.deadline_at[slots])).tolist():  # most stages have none
            found[at] = self.rank(pending.stages[slots[at]], world)
        return found
