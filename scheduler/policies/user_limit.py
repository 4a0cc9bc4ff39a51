"""User limit: limits the running stages of one user in a pool, and what limits say of their stages and devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduler.core.hooks import Admit
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Grant, Limit, Reason, Running, Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import grants_of


@dataclass(frozen=True)
class UserLimit(Admit):
    """Counts what a user runs, with what starts in this cycle. Without a limit every stage is admitted."""

    def admit(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Reason | None:
        pool = world.pools.get(stage.pool)
        most = pool.user_limit if pool else None
        limits = [one for one in world.snapshot.limits if one.covers(stage)]
        if most is None and not limits:
            return None
        mine = list(_runs(stage.user, world))
        running = sum(one.pool == stage.pool for one, _ in mine)
        if most is not None and running >= most:
            return Reason("UserLimit", {"user": stage.user, "running": running, "limit": most})
        special = [ask for ask in feasible.alternative.asks if is_accelerator(ask.kind)]
        asked = sum(ask.count * ask.milli for ask in special) * stage.nodes
        found = (_judge(limit, stage.user, asked, mine, world) for limit in binding(limits))
        return next((reason for reason in found if reason), None)


def binding(limits: Iterable[Limit]) -> list[Limit]:
    """Return those that count: what is said of one user takes the place of what is said of every user there."""
    own = {(one.pool, one.project) for one in limits if one.user}
    return [one for one in limits if one.user or (one.pool, one.project) not in own]


def _runs(user: str, world: ReadOnlyWorld) -> Iterator[tuple[Stage | Running, tuple[Grant, ...]]]:
    """Yield what a user runs and what starts of theirs in this cycle, with what each holds."""
    for name in world.runs_of(user):
        if name in world.running:
            yield world.running[name], grants_of(world.running[name])
    for name, option in world.starts.items():
        if world.waiting[name].user == user:
            yield world.waiting[name], option.grants


def _judge(
    limit: Limit,
    user: str,
    asked: int,
    mine: Iterable[tuple[Stage | Running, tuple[Grant, ...]]],
    world: ReadOnlyWorld,
) -> Reason | None:
    covered = [grants for one, grants in mine if limit.covers(one)]
    named = {"user": user, "number": limit.number, "pool": limit.pool, "project": limit.project}
    if limit.running is not None and len(covered) >= limit.running:
        return Reason("UserStages", {**named, "running": len(covered), "limit": limit.running})
    if limit.devices_milli is None or not asked:
        return None
    devices = world.ledger.devices
    grants = (one for some in covered for one in some if one.device in devices)
    held = sum(one.milli for one in grants if is_accelerator(devices[one.device].kind))
    if held + asked <= limit.devices_milli:
        return None
    numbers = {"held": held / 1000, "asked": asked / 1000, "limit": limit.devices_milli / 1000}
    return Reason("UserDevices", {**named, **{name: f"{number:.4g}" for name, number in numbers.items()}})
