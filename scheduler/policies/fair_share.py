"""Fair share: who has used less than their part goes first."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.lifecycle import State
from scheduler.core.line import Column, Line
from scheduler.core.types import Alternative, Reason, Stage
from scheduler.core.view import View


@dataclass(frozen=True)
class FairShare:
    """Half for each fair share that the project has used: 1 for none, 0.5 for exactly its share, 0.25 for twice.

    Its weight in the profile says how many points of priority the whole range is worth. Slurm's classic formula.

    With ``defer_above`` a project beyond so many fair shares starts nothing while a project below that has a stage
    that could be looked at: devices may then stay idle for somebody who is owed them. 0 defers nobody.
    """

    defer_above: float = 0.0

    def order(self, stage: Stage, view: View) -> float:
        return self._value(view.share(stage.project))

    def orders(self, line: Line, view: View) -> Column:
        return line.by_project((name, self._value(view.share(name))) for name in line.projects)

    def _value(self, share: float) -> float:
        return float(2.0**-share)

    def admit(self, stage: Stage, alternative: Alternative, view: View) -> Reason | None:
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
        return ready and view.shape(other).impossible is None
