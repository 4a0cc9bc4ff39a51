"""What a stage can get of the machines, for policies that allocate by a linear program."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scheduler.core.model.types import Stage
from scheduler.core.resources import speed
from scheduler.core.resources.fleet import Fleet
from scheduler.core.world.service import width

if TYPE_CHECKING:
    from scheduler.core.world.read_only import ReadOnlyWorld
    from scheduler.core.world.request_class import RequestClass


@dataclass(frozen=True, slots=True)
class FairClaimant:
    """A stage and its ways: the device model of each, how fast it is there, and how many such devices there are.

    ``usual`` is its throughput with an equal part of everything, in the same unit as ``speeds``.
    """

    stage: Stage
    width: float
    models: tuple[str, ...]
    speeds: tuple[float, ...]
    sizes: tuple[float, ...]

    @property
    def usual(self) -> float:
        whole = sum(self.sizes)
        return sum(rate * size for rate, size in zip(self.speeds, self.sizes, strict=True)) / whole


def parts(stages: Iterable[Stage], world: ReadOnlyWorld) -> list[FairClaimant]:
    """Return the alternatives of each stage, without stages that fit nowhere or whose request is unknown."""
    found = []
    for stage in stages:
        if not stage.alternatives or not (request := world.request_class(stage)).feasible_sets:
            continue
        found.append(FairClaimant(stage, width(stage), *_feasible_sets(request, world.fleet)))
    return found


@lru_cache(maxsize=64)  # few, for each holds on to a fleet that may be gone
def _feasible_sets(request: RequestClass, fleet: Fleet) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    models, sizes = [], []
    for feasible in request.feasible_sets:
        at = speed.deciding(feasible.alternative.asks)
        devices = feasible.rows[at][feasible.rows[at] >= 0]
        models.append(fleet.devices[int(devices[0])].model)
        sizes.append(float(fleet.capacity[devices].sum()) / 1000)
    return tuple(models), tuple(feasible.speed for feasible in request.feasible_sets), tuple(sizes)


_CAPACITY: WeakKeyDictionary[Fleet, dict[tuple[str, str], float]] = WeakKeyDictionary()


def capacity(world: ReadOnlyWorld, pool: str, kind: str) -> float:
    """How many devices of a kind (cores for *cpu*) a pool has; summed up once, for a fleet is never altered."""
    known = _CAPACITY.setdefault(world.fleet, {})
    if (pool, kind) not in known:
        nodes = [node for node in world.fleet.nodes if pool in node.pools]
        milli = sum(device.capacity_milli for node in nodes for device in node.devices if device.kind == kind)
        known[pool, kind] = milli / 1000
    return known[pool, kind]


def shuffled(models: Iterable[str], now: float, round_s: float, seed: int) -> list[str]:
    """The models in the order of this round; the same for the same round, in whatever order they are named.

    All orders are equally frequent. Sorting by a checksum of round and model would not do: checksums of words that
    differ in their last letters only differ by a constant, and some orders would hardly ever come.
    """
    order = sorted(models)
    random.Random(f"{seed} {int(now // round_s)}").shuffle(order)
    return order
