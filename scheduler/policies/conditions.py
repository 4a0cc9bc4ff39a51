"""Conditions: a device that warns is used last, and one that warns or is unhealthy is left before it fails."""

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
    """Pending row remaps, rising corrected errors, throttling or a link below its width come before a failure. Such a
    device still works, so that it is better than none; but where another node has a sound one, that is taken. Within a
    node the engine itself takes devices that warn last.

    A running stage leaves such a device for a sound one that is free, where that is worth its price. A device that
    warns is taken to fail at random, after ``fails_after_s`` on average; that would cost the stage its work since the
    last checkpoint, and ``fault_s`` until the fault is noticed and it runs again. One that is unhealthy takes nobody
    new; who still runs there leaves it in the same way, only that it is taken to fail after
    ``unhealthy_fails_after_s``.
    """

    fails_after_s: float = field(default=21_600.0, metadata={"range": (1.0, 366 * 86_400.0)})
    unhealthy_fails_after_s: float = field(default=1_800.0, metadata={"range": (1.0, 366 * 86_400.0)})
    fault_s: float = 300.0
    settle_s: ClassVar[float] = 0.0

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Minus the number of devices that warn among those that would be taken."""
        warned = room.columns(world.ledger.fleet).warned
        found = np.zeros(len(rows))
        if not warned.any():
            return found
        for i in range(len(feasible.alternative.asks)):
            found -= warned[room.taken(feasible, i, rows, world)[0]].sum(axis=1)
        return found

    def evacuates(self, running: Running, world: ReadOnlyWorld) -> tuple[Said, float]:
        """Which of its devices are unhealthy, else which warn, and what it may expect to lose by staying."""
        devices = [world.ledger.devices[one.device] for one in grants_of(running) if one.device in world.ledger.devices]
        unhealthy = [device for device in devices if device.health is Health.UNHEALTHY]
        ailing = unhealthy or [device for device in devices if device.warned]
        if not ailing:
            return (), 0.0
        left_s = max(world.finish.get(running.id, world.now) - world.now, 0.0)
        after_s = min(self.unhealthy_fails_after_s, self.fails_after_s) if unhealthy else self.fails_after_s
        chance = 1.0 - math.exp(-left_s / after_s)
        # A fault takes what was done since the last checkpoint; without any, also half of what is yet to be done.
        since, again_s = price.at_stake(running)
        at_stake_s = max(world.now - min(since, world.now), 0.0) + again_s + self.fault_s
        if not (running.checkpoints or running.saves_on_stop):
            at_stake_s += left_s / 2
        names = ", ".join(f"{one.kind}{one.index} of {world.nodes[one.node].name}" for one in ailing)
        loss = chance * price.weight(running.priority) * price.width(running) * at_stake_s
        one, more = ("DeviceUnhealthy", "DevicesUnhealthy") if unhealthy else ("DeviceWarns", "DevicesWarn")
        return (clause(several(len(ailing), one, more), devices=names),), loss

    def gains(self, running: Running, placement: Placement, world: ReadOnlyWorld) -> float:
        """All that it may expect to lose by staying; nothing where it would go to a device that ails too."""
        devices = world.ledger.devices
        if any(devices[one.device].ails for rank in placement.grants for one in rank):
            return 0.0
        return self.evacuates(running, world)[1]
