"""One scheduling cycle: load, plan, apply. The live record and the simulator run the same lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Plan, Snapshot
from scheduler.core.planning import engine
from scheduler.core.ports import Applied, Remembers, Store, Tells


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle saw, decided and changed."""

    snapshot: Snapshot
    plan: Plan
    applied: Applied


def run(
    store: Store,
    profile_for: Callable[[str], Profile],
    now: float,
    planner: engine.Planner | None = None,
) -> Cycle:
    """Look at the world, decide, and make it so. ``profile_for`` gives the profile of a name.

    With a ``planner`` only what changed since its last cycle is worked out again.
    """
    snapshot = store.load(now)
    profiles = {pool.name: profile_for(pool.profile) for pool in snapshot.pools}
    if planner:
        # To ask isinstance of a protocol costs more than all the rest of this function.
        news = cast(Remembers, store).news() if hasattr(store, "news") else None
        plan = planner.plan(snapshot, profiles, now, news)
        snapshot = planner.seen
    else:
        plan = engine.plan(snapshot, profiles, now)
    applied = store.apply(snapshot, plan, now)
    if planner and hasattr(store, "tell"):
        # Whoever starts does not wait for the words of those who do not.
        plan = planner.explained()
        cast(Tells, store).tell(snapshot, plan, now)
    return Cycle(snapshot, plan, applied)
