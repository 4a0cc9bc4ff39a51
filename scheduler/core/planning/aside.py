"""Planning that goes on when the engine raises: the node, stage or pool at fault is set aside for a while.

The culprit is found by bisection, so a few dozen plans find one bad row among thousands. It runs only after a plan
raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from scheduler.core.model.clauses import Said, clause
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import News, Plan, Running, Snapshot, Stage
from scheduler.core.planning import engine

# What was set aside is tried again after this time.
AGAIN_S: Final = 30.0
# Half an hour of a busy cluster.
MOST_CYCLES: Final = 2_000

Profiles = Profile | Mapping[str, Profile]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Aside:
    """What a plan leaves out: nodes and stages by id, pools by name, each with the reason."""

    nodes: dict[str, Said] = field(default_factory=dict)
    stages: dict[str, Said] = field(default_factory=dict)
    pools: dict[str, Said] = field(default_factory=dict)
    # How people call the stages.
    names: dict[str, str] = field(default_factory=dict)
    # The waiting stages that it keeps from starting, with the numbers of their jobs.
    waiting: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.stages or self.pools)

    def out_of(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot without what is set aside. A node stays in it but without devices, so nothing starts
        there."""
        return replace(
            snapshot,
            nodes=tuple(replace(node, devices=()) if node.id in self.nodes else node for node in snapshot.nodes),
            running=tuple(run for run in snapshot.running if run.id not in self.stages),
            waiting=tuple(
                stage for stage in snapshot.waiting if stage.id not in self.stages and stage.pool not in self.pools
            ),
        )


class TolerantPlanner(engine.Planner):
    """A planner that leaves out what makes the engine raise, and plans the rest. ``aside`` tells what is left out."""

    def __init__(self, most: int = MOST_CYCLES) -> None:
        super().__init__(most)
        self.aside = Aside()
        self._until = 0.0
        self._asked: tuple[Snapshot, Profiles, float] | None = None

    def plan(self, snapshot: Snapshot, profile: Profiles, now: float, news: News | None = None) -> Plan:
        """Return the plan without what is set aside; of the waiting stages, only those whose reservation changed."""
        self._asked = (snapshot, profile, now)
        if now >= self._until:
            self.aside = Aside()
        try:
            if not self.aside:
                return super().plan(snapshot, profile, now, news)
            # The news are about the whole world.
            return super().plan(self.aside.out_of(snapshot), profile, now)
        except Exception:
            if not self._set_aside(snapshot, profile, now):
                raise
        return super().plan(self.aside.out_of(snapshot), profile, now)

    def explained(self, names: Collection[str] | None = None) -> Plan:
        """Return the last plan with every waiting stage that is not set aside, or only those of ``names``.

        If the reasons of one stage cannot be made, that stage is set aside and the plan is made again.
        """
        try:
            return super().explained(names)
        except Exception:
            if self._asked is None or not self._set_aside(*self._asked):
                raise
        snapshot, profile, now = self._asked
        super().plan(self.aside.out_of(snapshot), profile, now)
        return super().explained(names)

    def _set_aside(self, snapshot: Snapshot, profile: Profiles, now: float) -> bool:
        """Find what makes planning raise and set it aside. Return whether anything was found."""
        found = search(snapshot, profile, now)
        if found:
            self.aside, self._until = found, now + AGAIN_S
        return bool(found)


def search(snapshot: Snapshot, profile: Profiles, now: float) -> Aside:
    """Return what to set aside so that the rest can be planned; empty if no single row raises by itself."""
    found = Aside()

    def says(world: Snapshot) -> str:
        try:
            engine.plan(found.out_of(world), profile, now)
        except Exception as error:  # noqa: BLE001  any error is reported
            return f"{type(error).__name__}: {error}"
        return ""

    empty = replace(snapshot, waiting=(), running=())
    for node, why in _bad(snapshot.nodes, lambda some: says(replace(empty, nodes=tuple(some)))):
        found.nodes[node.id] = _unplannable(why)
    for run, why in _bad(snapshot.running, lambda some: says(replace(snapshot, waiting=(), running=tuple(some)))):
        # It holds devices: nothing else may start on them while it is unknown which.
        found.stages[run.id], found.names[run.id] = _unplannable(why), _named(run)
        holds = (clause("HolderUnplannable", stage=_named(run), fault=why),)
        found.nodes.update(dict.fromkeys(run.placement.nodes, holds))
    if not says(snapshot):
        return found
    by_pool: dict[str, list[Stage]] = {}
    for stage in snapshot.waiting:
        by_pool.setdefault(stage.pool, []).append(stage)
    for pool, stages in sorted(by_pool.items()):
        if not says(replace(snapshot, waiting=tuple(stages))):
            continue
        for stage, why in _bad(stages, lambda some: says(replace(snapshot, waiting=tuple(some)))):
            found.stages[stage.id], found.names[stage.id] = _unplannable(why), _named(stage)
        if why := says(replace(snapshot, waiting=tuple(stages))):
            found.pools[pool] = _unplannable(why)
        kept = (stage for stage in stages if pool in found.pools or stage.id in found.stages)
        found.waiting.update({stage.id: stage.number for stage in kept})
    return found if not says(snapshot) else Aside()


def _unplannable(why: str) -> Said:
    return (clause("Unplannable", fault=why),)


def _named(one: Stage | Running) -> str:
    return f"#{one.number} {one.name}"


def _bad(some: Sequence[T], says: Callable[[Sequence[T]], str]) -> list[tuple[T, str]]:
    """Return the rows that raise by themselves, with the error of each."""
    why = says(some) if some else ""
    if not why:
        return []
    if len(some) == 1:
        return [(some[0], why)]
    middle = len(some) // 2
    return _bad(some[:middle], says) + _bad(some[middle:], says)
