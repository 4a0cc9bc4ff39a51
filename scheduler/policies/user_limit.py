"""User limit: limits the running stages of one user in a pool."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Admit
from scheduler.core.model.types import Reason, Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet


@dataclass(frozen=True)
class UserLimit(Admit):
    """Counts what a user runs in the pool, with what starts in this cycle. Without a limit every stage is admitted."""

    def admit(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Reason | None:
        pool = world.pools.get(stage.pool)
        if pool is None or pool.user_limit is None:
            return None
        running = world.runs_of(stage.user, stage.pool)
        begun = [world.waiting[name] for name in world.starts]
        running += sum(one.user == stage.user and one.pool == stage.pool for one in begun)
        if running < pool.user_limit:
            return None
        return Reason("UserLimit", {"user": stage.user, "running": running, "limit": pool.user_limit})
