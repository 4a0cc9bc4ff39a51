"""The planner's state with the decisions of the cycle. The engine writes it; policies only read it.

A view may be used for one snapshot after another. It has layers, each of which uses those before it: ``world`` (nodes,
ledger, stages), ``shares`` (usage of projects), ``forecast`` (predicted run times), ``occupancy`` (what running stages
hold and until when), ``decisions`` (of this cycle) and ``deltas`` (what changed since the last snapshot).
"""

from __future__ import annotations

import numpy as np

from scheduler.core.model.profile import Profile
from scheduler.core.world.deltas import Deltas
from scheduler.core.world.request_class import FeasibleSet, RequestClass
from scheduler.core.world.reservation import Option, TimetableEntry, WaitOutcome, grants_of

__all__ = ["FeasibleSet", "Option", "RequestClass", "TimetableEntry", "View", "WaitOutcome", "grants_of"]


class View(Deltas):
    """The state of one cycle, with the operations that the engine uses in policies, queue and timetable."""

    def refresh(self, feasible: FeasibleSet, profile: Profile) -> None:
        """Update on which places ``feasible`` fits now, and their scores."""
        fresh = feasible.refresh(self.ledger)
        if not len(fresh) or not profile.scores:
            return
        score = np.zeros(len(fresh))
        for policy, weight in profile.scores:
            score += weight * policy.scores(feasible, fresh, self)
        feasible.score[fresh] = np.round(score, 6)

    def room(self, pool: str, priority: float, profile: Profile) -> bool:
        """Return whether the timetable of a pool takes one more reservation of this priority."""
        if profile.timetable == "none":
            return False
        entries = self.entries.get(pool)
        if not entries:
            return True
        return sum(count for other, count in entries.items() if other >= priority) < profile.depth

    def wake(self, at: float) -> None:
        """Ask for another cycle at this time, if it is in the future."""
        if at > self.now:
            self.wakes.append(at)
