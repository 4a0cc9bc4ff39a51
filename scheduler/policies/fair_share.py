"""Fair share: who has received least for the weight of their project goes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Reason, Stage
from scheduler.core.world.pending import Column
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.view import View


@dataclass(frozen=True)
class FairShare:
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

    def order(self, stage: Stage, view: View) -> float:
        return float(2.0 ** -view.share(stage.project))

    def hysteresis(self, pool: str, view: View) -> float:
        """By how much more a project must be due than another for a promise to yield, in device-seconds for
        each unit of weight."""
        weights = [view.weight(name) for name in view.pending.projects]
        return self.hysteresis_s * view.size(pool) * len(weights) / sum(weights) if weights else 0.0

    def levels(self, pool: str, order: Column, due: Column, view: View) -> Column:
        drift = self.hysteresis(pool, view)
        weights = sum(view.weight(name) for name in view.pending.projects)
        # One fair share of all that is spoken of; a promise is never worth more than one.
        unit = max(view.spoken[pool] / weights, drift, 1.0)
        is_promised = np.isfinite(view.pending.promised_at[order])
        points: Column = 2.0 ** -((due - drift * is_promised) / unit)
        return points

    def admit(self, stage: Stage, feasible: FeasibleSet, view: View) -> Reason | None:
        if self.defer_above <= 0.0 or view.share(stage.project) <= self.defer_above:
            return None
        for other in view.waiting.values():
            owed = other.pool == stage.pool and view.share(other.project) <= self.defer_above
            if owed and other.id not in view.starts and self._may_start(other, view):
                return Reason(
                    "FairShareDeferred", {"project": stage.project, "share": round(view.share(stage.project), 3)}
                )
        return None

    def _may_start(self, other: Stage, view: View) -> bool:
        ready = other.state is State.PENDING and not other.unmet and not other.blocked_by
        return ready and view.request_class(other).impossible is None
