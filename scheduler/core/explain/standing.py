"""Queue positions of waiting stages: how many are ahead of each, and which of them have the same reasons.

All of it is arrays over the queue, so reasons for one stage of a hundred thousand can be made without the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from scheduler.core.matching.gate import is_gated
from scheduler.core.world.pending import Column
from scheduler.core.world.view import View


class Standing:
    """The queue of a finished cycle; ``slots`` are the slots of the pending table in queue order. Arrays have one value
    per position.

    ``waits`` tells which stages do not start; ``is_apart`` which of them have reasons of their own, because the walk
    looked at them, they have a reservation or they are gated; ``is_shut`` those of these that are blocked by their pool
    or time limit for an unknown time. ``passed`` tells that a younger stage of the same class is ahead because its
    project used less than its share.
    """

    def __init__(self, view: View, slots: Column) -> None:
        self._view, self._slots = view, slots
        self.waits = ~self._among(view.starts)
        self.is_shut = self._is_shut()
        self.is_apart = self._among(view.outcomes) | self._among(view.reservations) | self._is_gated()
        self.passed = self._passed_over()
        self._sort = view.pending.group[slots] * 2 + self.passed
        self._speakers: Column | None = None

    def places(self, names: Collection[str]) -> list[int]:
        """Return the queue positions of those of these stages that wait, in order."""
        found = self._among(names) & self.waits
        return [int(at) for at in np.flatnonzero(found)]

    def speaker(self, at: int) -> int:
        """Return the first stage with the same reasons as the one at this position, which is not apart."""
        if self._speakers is None:
            alike = np.flatnonzero(self.waits & ~self.is_apart)[::-1]
            self._speakers = np.zeros(int(self._sort.max(initial=0)) + 1, dtype=np.int64)
            self._speakers[self._sort[alike]] = alike
        return int(self._speakers[self._sort[at]])

    def ahead(self, counts: Column, floors: Column) -> Column:
        """Return how many stages of its pool are ahead of each, as :func:`ahead_of_each` computes it."""
        return ahead_of_each(self._view.pending.pool[self._slots], counts, floors)

    def _among(self, names: Iterable[str]) -> Column:
        """Return for each position whether its stage is one of these."""
        found = np.zeros(len(self._view.pending.priority), dtype=np.bool_)
        slot = self._view.pending.slot
        found[[slot[name] for name in names if name in slot]] = True
        return found[self._slots]

    def _is_shut(self) -> Column:
        pending, pools = self._view.pending, [self._view.pools.get(name) for name in self._view.pending.pools]
        stopped = np.array([bool(pool and pool.stopped_by) for pool in pools], dtype=np.bool_)
        most = np.array([np.inf if pool is None or pool.max_limit_s is None else pool.max_limit_s for pool in pools])
        pool = pending.pool[self._slots]
        found: Column = stopped[pool] | (pending.limit_s[self._slots] > most[pool])
        return found

    def _is_gated(self) -> Column:
        pending, slots = self._view.pending, self._slots
        found: Column = self.is_shut | pending.is_blocked[slots]
        for at in np.flatnonzero(pending.is_gated[slots] & ~found).tolist():
            found[at] = is_gated(self._view, pending.stages[slots[at]])
        return found

    def _passed_over(self) -> Column:
        pending, slots = self._view.pending, self._slots
        owed = np.array([self._view.share(name) <= 1.0 for name in pending.projects], dtype=np.bool_)
        is_owed = owed[pending.project[slots]]
        submitted_at = pending.submitted_at[slots]
        rank = pending.priority[slots] * max(len(pending.pools), 1) + pending.pool[slots]
        passed = np.zeros(len(slots), dtype=np.bool_)
        for one in np.unique(rank).tolist():
            at = np.flatnonzero(rank == one)
            newest = np.maximum.accumulate(np.where(is_owed[at], submitted_at[at], 0.0))
            passed[at] = ~is_owed[at] & (submitted_at[at] < newest)
        return passed


def ahead_of_each(pools: Column, counts: Column, floors: Column) -> Column:
    """Return how many stages of its pool are ahead of each position.

    ``counts`` is 1 for stages that count for those behind them, else 0. Behind a stage that counts, the number is at
    least its ``floors`` plus one.
    """
    found = np.zeros(len(pools), dtype=np.int64)
    for pool in np.flatnonzero(np.bincount(pools)).tolist():
        at = np.flatnonzero(pools == pool)
        mine = counts[at]
        before = np.cumsum(mine) - mine
        lifts = np.maximum.accumulate(np.where(mine > 0, np.maximum(floors[at] - before, 0), 0))
        before[1:] += lifts[:-1]
        found[at] = before
    return found
