"""What the engine knows and has decided so far; the engine writes it, policies only read it.

A view may look at one world after another. It is built of layers, each of which knows those before it: ``world``, what
is; ``shares``, what projects have; ``forecast``, how long stages run; ``occupancy``, what those that run hold and until
when; ``decisions``, what the cycle decided; and ``deltas``, what changed since the last look.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.model.profile import Profile
from scheduler.core.world.deltas import Deltas
from scheduler.core.world.request_class import FeasibleSet, RequestClass
from scheduler.core.world.reservation import Option, Reservation, WaitOutcome, grants_of

__all__ = ["FeasibleSet", "Option", "RequestClass", "Reservation", "View", "WaitOutcome", "grants_of"]


class View(Deltas):
    """The world of one cycle, with the questions that the engine asks of its policies, its queue and its timetable."""

    def refresh(self, feasible: FeasibleSet, profile: Profile) -> None:
        """Bring up to date where ``feasible`` fits now and how well."""
        fresh = feasible.refresh(self.ledger)
        if not len(fresh) or not profile.scores:
            return
        score = np.zeros(len(fresh))
        for policy, weight in profile.scores:
            score += weight * policy.scores(feasible, fresh, self)
        feasible.score[fresh] = np.round(score, 6)

    def room(self, pool: str, priority: float, profile: Profile) -> bool:
        """Whether the timetable of a pool takes one more entry of this importance."""
        if profile.timetable == "none":
            return False
        entries = self.entries.get(pool)
        if not entries:
            return True
        return sum(count for other, count in entries.items() if other >= priority) < profile.depth

    def wake(self, at: float) -> None:
        """Ask for another look then, if that is yet to come."""
        if at > self.now:
            self.wakes.append(at)
