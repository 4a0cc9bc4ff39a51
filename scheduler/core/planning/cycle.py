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
    """What a cycle read, decided and changed.

    ``partial`` tells that of the waiting stages the plan names only those whose reasons the cycle wrote. ``gone`` are
    the stages that left the queue since the cycle before, if the store tells.
    """

    snapshot: Snapshot
    plan: Plan
    applied: Applied
    partial: bool = False
    gone: tuple[str, ...] = ()


def run(
    store: Store,
    profile_for: Callable[[str], Profile],
    now: float,
    planner: engine.Planner | None = None,
) -> Cycle:
    """Load the snapshot, plan, and apply the plan. ``profile_for`` returns the profile of a name.

    With a ``planner``, only what changed since its last cycle is computed again.
    """
    snapshot = store.load(now)
    profiles = {pool.name: profile_for(pool.profile) for pool in snapshot.pools}
    news = None
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
        names = cast(Tells, store).due(snapshot, plan, now)
        plan = planner.explained(None if names is None else {*names, *planner.head})
        cast(Tells, store).tell(snapshot, plan, now)
        gone = tuple(name for name, stage in news.waiting.items() if stage is None) if news else ()
        return Cycle(snapshot, plan, applied, names is not None, gone)
    return Cycle(snapshot, plan, applied)


def tell_more(store: Tells, planner: engine.Planner, done: Cycle, now: float) -> Cycle:
    """Write reasons for waiting stages that the cycle ``done`` did not reach. Returns the stages written; decides
    and applies nothing."""
    plan = planner.explained(store.due(done.snapshot, None, now))
    store.tell(done.snapshot, plan, now)
    return Cycle(done.snapshot, plan, Applied(), partial=True)
