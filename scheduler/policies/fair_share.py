"""Fair share: the stage whose project received least for its weight goes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.hooks import Admit, Rank
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Reason, Stage
from scheduler.core.world.pending import Column
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class FairShare(Rank, Admit):
    """A stage is due when its project will have received no more than others: the project's use (decayed), what it
    holds until the predicted end, and what its stages before this one ask for, all divided by its weight.

    So projects of equal weight alternate, within a cycle as across cycles. The score runs from 1 for a project without
    use down to 0, halved by each fair share; its weight in the profile scales it.

    A promise stands until shares have drifted beyond ``hysteresis_s``: that many seconds of the whole pool. Then it
    yields to a project that is owed more. With ``defer_above`` a project beyond so many fair shares starts nothing
    while a project below has a stage that could start: devices may then stay idle for it. 0 defers no project.
    """

    hysteresis_s: float = 900.0
    defer_above: float = 0.0

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return float(2.0 ** -world.share(stage.project))

    def hysteresis(self, pool: str, world: ReadOnlyWorld) -> float:
        """Return by how much more a project must be due than another for a promise to yield, in device-seconds per unit
        of weight."""
        weights = [world.weight(name) for name in world.pending.waiting_projects]
        return self.hysteresis_s * world.size(pool) * len(weights) / sum(weights) if weights else 0.0

    def levels(self, pool: str, order: Column, due: Column, world: ReadOnlyWorld) -> Column:
        drift = self.hysteresis(pool, world)
        weights = sum(world.weight(name) for name in world.pending.waiting_projects)
        # One fair share of everything promised; a promise is never worth more than one.
        unit = max(world.spoken[pool] / weights, drift, 1.0)
        is_promised = np.isfinite(world.pending.promised_at[order])
        points: Column = 2.0 ** -((due - drift * is_promised) / unit)
        return points

    def admit(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Reason | None:
        if self.defer_above <= 0.0 or world.share(stage.project) <= self.defer_above:
            return None
        for other in world.waiting.values():
            owed = other.pool == stage.pool and world.share(other.project) <= self.defer_above
            if owed and other.id not in world.starts and self._may_start(other, world):
                return Reason(
                    "FairShareDeferred", {"project": stage.project, "share": round(world.share(stage.project), 3)}
                )
        return None

    def _may_start(self, other: Stage, world: ReadOnlyWorld) -> bool:
        ready = other.state is State.PENDING and not (other.unmet or other.blocked_by or other.awaits)
        return ready and world.request_class(other).impossible is None
