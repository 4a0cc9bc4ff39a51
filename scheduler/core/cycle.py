"""One scheduling cycle: load, plan, apply. The live record and the simulator run the same lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.core import engine
from scheduler.core.ports import Applied, Store
from scheduler.core.profile import Profile
from scheduler.core.types import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle saw, decided and changed."""

    snapshot: Snapshot
    plan: Plan
    applied: Applied


def run(store: Store, profile_for: Callable[[str], Profile], now: float) -> Cycle:
    """Look at the world, decide, and make it so. ``profile_for`` gives the profile of a name."""
    snapshot = store.load(now)
    profiles = {pool.name: profile_for(pool.profile) for pool in snapshot.pools}
    plan = engine.plan(snapshot, profiles, now)
    return Cycle(snapshot, plan, store.apply(snapshot, plan, now))
