"""Priority: higher priority first, with a guaranteed share against starvation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.hooks import Rank, Victims
from scheduler.core.model.types import Running, Stage
from scheduler.core.world.pending import Column, PendingTable
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.reservation import grants_of


@dataclass(frozen=True)
class Priority(Rank, Victims):
    """The number of the stage's class. It also decides who may preempt whom: waiting raises no stage to another class.

    Low classes are kept from starving by a share of the pool, the ``guarantee``: while stages that started after
    waiting more than ``patience_s`` hold less than this share, the one that has waited longest comes right after
    *urgent* (``cap``), one at least, and a stage started in this way is not preempted.
    """

    patience_s: float = 3 * 86_400.0
    guarantee: float = field(default=0.05, metadata={"range": (0.0, 1.0)})
    cap: float = 1000.0

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return max(float(stage.priority), self.cap - 1.0) if stage.id in world.guaranteed else float(stage.priority)

    def ranks(self, pending: PendingTable, slots: Column, world: ReadOnlyWorld) -> Column:
        found = pending.priority.astype(np.float64)
        at = [pending.slot[name] for name in world.guaranteed if name in pending.slot]
        found[at] = np.maximum(found[at], self.cap - 1.0)
        return found[slots]

    def guarantees(self, pool: str, world: ReadOnlyWorld) -> set[str]:
        """Return the stages served from the guaranteed share of the pool: those that run so, and those next in turn."""
        left, found = self.guarantee * world.size(pool), set[str]()
        if left <= 0.0:
            return found
        victim_index, pending = world.victim_index, world.pending
        began = victim_index.stages[(victim_index.node >= 0) & (victim_index.waited_s > self.patience_s)].tolist()
        mine = {one.id: one for one in began if one.pool == pool and one.priority < self.cap}
        for one in sorted(mine.values(), key=lambda one: (one.started_at, one.id)):
            if left > 0.0:
                found.add(one.id)
                left -= world.charge(grants_of(one))
        slots = np.flatnonzero(pending.is_used & (pending.eligible_at < world.now - self.patience_s))
        if not len(slots):
            return found
        inside = pending.is_used & (pending.pool == pending.pools.index(pool)) & ~pending.is_gated
        top = min(float(pending.priority[inside].max(initial=0.0)), self.cap)
        slots = slots[inside[slots] & (pending.priority[slots] < top)]
        for slot in slots[np.lexsort((pending.number[slots], pending.eligible_at[slots]))].tolist():
            stage: Stage = pending.stages[slot]
            if left <= 0.0 and found:
                break
            if world.request_class(stage).impossible is None:
                found.add(stage.id)
                left -= world.charge_of(stage)
        return found

    def protects(self, running: Running, world: ReadOnlyWorld) -> bool:
        return running.id in world.guaranteed
