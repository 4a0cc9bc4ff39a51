"""Decides for all pools of a snapshot, each by the mode of its profile: with a timetable or queue, or in turns.

Where both modes are in use, the pools that do not rotate come first; those that do see what these were given as held.
A promise of the former holds against the latter as far as they share no nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from scheduler.core import engine, rotation
from scheduler.core.lifecycle import State
from scheduler.core.profile import Profile
from scheduler.core.service import as_running
from scheduler.core.types import News, Plan, Running, Snapshot, Stage, Start

# Half an hour of a busy cluster.
MOST_CYCLES: Final = 2_000


def plan(snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float) -> Plan:
    """What to do now. Pure: the same snapshot, in whatever order, gives the same plan.

    ``profile`` is one for all pools, or one for each pool by name. Each waiting stage is in the plan exactly once.
    """
    turning = _turning(snapshot, profile)
    if not turning:
        return engine.plan(snapshot, profile, now)
    if len(turning) == len(snapshot.pools):
        return rotation.plan(snapshot, profile, now)
    in_turns = tuple(stage for stage in snapshot.waiting if stage.pool in turning)
    others = tuple(stage for stage in snapshot.waiting if stage.pool not in turning)
    first = engine.plan(replace(snapshot, waiting=others), profile, now)
    second = rotation.plan(_after(snapshot, first, in_turns, others, now), profile, now)
    wakes = [at for at in (first.wake_at, second.wake_at) if at is not None]
    return replace(
        first,
        starts=first.starts + second.starts,
        preempts=first.preempts + second.preempts,
        moves=first.moves + second.moves,
        waits=first.waits + second.waits,
        wake_at=min(wakes, default=None),
        swaps=first.swaps + second.swaps,
    )


class Planner:
    """Decides one cycle after another as :func:`plan` does, and remembers: what did not change is not worked out again.

    ``seen`` is the snapshot of the last plan with what was remembered in it: :func:`plan` of it gives the same, byte
    for byte. In turns nothing is remembered. After ``most`` cycles it begins anew, for it also remembers requests of
    stages that left long ago.
    """

    def __init__(self, most: int = MOST_CYCLES) -> None:
        self._engine, self._cycles, self._most = engine.Planner(), 0, most
        self.seen: Snapshot | None = None

    def plan(
        self, snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float, news: News | None = None
    ) -> Plan:
        """What to do now, with every waiting stage in it."""
        if _turning(snapshot, profile):
            self._forget()
            self.seen = snapshot
            return plan(snapshot, profile, now)
        if self._cycles >= self._most:
            self._forget()
        self._cycles += 1
        try:
            self._engine.think(snapshot, profile, now, news)
            found, self.seen = self._engine.explained(), self._engine.seen
        except BaseException:
            self._forget()  # what it knows by half
            raise
        return found

    def _forget(self) -> None:
        self._engine, self._cycles = engine.Planner(), 0


def _turning(snapshot: Snapshot, profile: Profile | Mapping[str, Profile]) -> set[str]:
    """The pools whose stages take turns."""
    profiles = {pool.name: profile if isinstance(profile, Profile) else profile[pool.name] for pool in snapshot.pools}
    return {name for name, one in profiles.items() if one.rotates != "none"}


def _after(
    snapshot: Snapshot, plan: Plan, waiting: tuple[Stage, ...], others: Collection[Stage], now: float
) -> Snapshot:
    """The world with what ``plan`` begins and whom it stops, in which only ``waiting`` is left to decide."""
    stages = {stage.id: stage for stage in others}
    stopped = {one.victim: one.stage or None for one in plan.stops}
    running = tuple(
        replace(one, state=State.STOPPING, evicted_for=stopped[one.id], stop_by_at=now + one.grace_s)
        if one.id in stopped
        else one
        for one in snapshot.running
    )
    begun = tuple(_begun(stages[start.stage], start, now) for start in plan.starts)
    return replace(snapshot, waiting=waiting, running=running + begun)


def _begun(stage: Stage, start: Start, now: float) -> Running:
    """A stage that begins in this cycle: it holds its devices, and nobody may displace it yet."""
    begun = as_running(stage, start.placement, now, state=State.STARTING, attempt="", estimate=start.lasts)
    return replace(begun, preemptible=False)
