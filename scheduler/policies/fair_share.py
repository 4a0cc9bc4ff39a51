"""Fair share: who has received least for the weight of their project goes first."""

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
    """A stage is due when its project will have received no more than others: what the project used (decayed), what it
    holds up to its predicted end, and what its stages before this one ask for, all for its weight.

    So projects of equal weight take turns, within a cycle as from one to the next. The points run from 1 for a project
    that has had nothing down to 0, one half for each fair share; the weight in the profile says what that is worth.

    A promise stands until shares have drifted beyond ``hysteresis_s``: that many seconds of the whole pool. Then it
    yields to who is owed more. With ``defer_above`` a project beyond so many fair shares starts nothing while a project
    below that has a stage that could be looked at: devices may then stay idle for somebody who is owed them. 0 defers
    nobody.
    """

    hysteresis_s: float = 900.0
    defer_above: float = 0.0

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        return float(2.0 ** -world.share(stage.project))

    def hysteresis(self, pool: str, world: ReadOnlyWorld) -> float:
        """By how much more a project must be due than another for a promise to yield, in device-seconds for
        each unit of weight."""
        weights = [world.weight(name) for name in world.pending.projects]
        return self.hysteresis_s * world.size(pool) * len(weights) / sum(weights) if weights else 0.0

    def levels(self, pool: str, order: Column, due: Column, world: ReadOnlyWorld) -> Column:
        drift = self.hysteresis(pool, world)
        weights = sum(world.weight(name) for name in world.pending.projects)
        # One fair share of all that is spoken of; a promise is never worth more than one.
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
        ready = other.state is State.PENDING and not other.unmet and not other.blocked_by
        return ready and world.request_class(other).impossible is None
