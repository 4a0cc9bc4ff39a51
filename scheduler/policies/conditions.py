"""Conditions: a degraded device is used last, and running stages leave it before it fails."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from scheduler.core.hooks import Score, Victims
from scheduler.core.matching import room
from scheduler.core.model.clauses import Said, clause, several
from scheduler.core.model.lifecycle import Health
from scheduler.core.model.types import Placement, Running
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world import price
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import grants_of


@dataclass(frozen=True)
class Conditions(Score, Victims):
    """Pending row remaps, rising corrected errors, throttling or a narrow link precede a failure. A degraded device
    still works, so it is better than none; but a node with a healthy one is preferred. Within a node the engine itself
    takes degraded devices last.

    A running stage moves from a degraded device to a free healthy one if that is worth its price. A degraded device is
    assumed to fail at random, after ``fails_after_s`` seconds on average; that would cost the work since the last
    checkpoint, and ``fault_s`` seconds until the stage runs again. An unhealthy device gets no new stage; stages still
    there move away in the same way, with ``unhealthy_fails_after_s``.
    """

    fails_after_s: float = field(default=21_600.0, metadata={"range": (1.0, 366 * 86_400.0)})
    unhealthy_fails_after_s: float = field(default=1_800.0, metadata={"range": (1.0, 366 * 86_400.0)})
    fault_s: float = 300.0
    settle_s: ClassVar[float] = 0.0

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return minus the number of degraded devices among those that would be taken."""
        warned = room.columns(world.ledger.fleet).warned
        found = np.zeros(len(rows))
        if not warned.any():
            return found
        for i in range(len(feasible.alternative.asks)):
            found -= warned[room.taken(feasible, i, rows, world)[0]].sum(axis=1)
        return found

    def evacuates(self, running: Running, world: ReadOnlyWorld) -> tuple[Said, float]:
        """Return which devices are unhealthy, else which are degraded, and the expected loss of staying."""
        devices = [world.ledger.devices[one.device] for one in grants_of(running) if one.device in world.ledger.devices]
        unhealthy = [device for device in devices if device.health is Health.UNHEALTHY]
        ailing = unhealthy or [device for device in devices if device.warned]
        if not ailing:
            return (), 0.0
        left_s = max(world.finish.get(running.id, world.now) - world.now, 0.0)
        after_s = min(self.unhealthy_fails_after_s, self.fails_after_s) if unhealthy else self.fails_after_s
        chance = 1.0 - math.exp(-left_s / after_s)
        # A fault takes the work since the last checkpoint; without any, also half of the remaining work.
        since, again_s = price.at_stake(running)
        at_stake_s = max(world.now - min(since, world.now), 0.0) + again_s + self.fault_s
        if not (running.checkpoints or running.saves_on_stop):
            at_stake_s += left_s / 2
        names = ", ".join(f"{one.kind}{one.index} of {world.nodes[one.node].name}" for one in ailing)
        loss = chance * price.weight(running.priority) * price.width(running) * at_stake_s
        one, more = ("DeviceUnhealthy", "DevicesUnhealthy") if unhealthy else ("DeviceWarns", "DevicesWarn")
        return (clause(several(len(ailing), one, more), devices=names),), loss

    def gains(self, running: Running, placement: Placement, world: ReadOnlyWorld) -> float:
        """Return the whole expected loss of staying; nothing if it would move to another degraded device."""
        devices = world.ledger.devices
        if any(devices[one.device].ails for rank in placement.grants for one in rank):
            return 0.0
        return self.evacuates(running, world)[1]
