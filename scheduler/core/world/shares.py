"""What projects have and are charged: the use of fair share, in device-seconds weighted by the worth of the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Grant, Snapshot, Stage
from scheduler.core.resources.commitments import Commitments
from scheduler.core.resources.fleet import Fleet
from scheduler.core.world.heads import Heads
from scheduler.core.world.pending import Column
from scheduler.core.world.request_class import RequestClass
from scheduler.core.world.world import World

LEAST_WEIGHT = 1e-6


class Shares(World):
    """What a project has received of the cluster, will receive, and is owed."""

    def _begin(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile]) -> None:
        super()._begin(snapshot, profiles)
        self.commitments = Commitments()
        # By project, as long as nothing starts.
        self._shares: dict[str, float] | None = None
        self._forget_charges()

    def share(self, project: str) -> float:
        """The project's part of all that was received and is committed, beside its part of all weights: 1 is its fair
        share."""
        if self._shares is None:
            taken = {one.id: self.taken(one.id) for one in self.projects.values()}
            whole, weights = sum(taken.values()), sum(one.weight for one in self.projects.values())
            self._shares = {
                one.id: (taken[one.id] / whole) / (one.weight / weights) if whole > 0 and one.weight > 0 else 0.0
                for one in self.projects.values()
            }
        return self._shares.get(project, 0.0)

    def taken(self, project: str) -> float:
        """Return what the project has received, decayed, and will receive by its holdings: device-seconds weighted by
        charge."""
        known = self.projects.get(project)
        return (known.used_device_s if known else 0.0) + self.commitments.of(project, self.now)

    def weight(self, project: str) -> float:
        """The weight of a project in fair share; never nothing."""
        known = self.projects.get(project)
        return max(known.weight, LEAST_WEIGHT) if known else 1.0

    def charge(self, grants: Iterable[Grant]) -> float:
        """Return the charge of a second of these grants in the use of their project."""
        row, each = self.fleet.row, self.fleet.charge
        return sum(float(each[row[one.device]]) * one.milli for one in grants if one.device in row) / 1000

    def charges(self, slots: Column) -> Column:
        """Return what each of these waiting stages (slots of the pending table) will add to the use of its project, if
        it runs as long as predicted on its fastest alternative; nothing for one that is held or has unmet
        dependencies."""
        pending = self.pending
        self._tier_charges += [
            _charge_of(request, self.fleet) for request, _ in pending.tiers[len(self._tier_charges) :]
        ]
        rates = np.array(self._tier_charges)[pending.tier[slots]]
        return np.where(pending.is_blocked[slots], 0.0, rates * pending.length_s[slots])

    def charge_of(self, stage: Stage) -> float:
        """Return the charge of a second of the stage on its fastest alternative."""
        return _charge_of(self.request_class(stage), self.fleet)

    def size(self, pool: str) -> float:
        """Return the charge of a second of all accelerators of a pool; of all cores if it has none."""
        if pool not in self._sizes:
            alike = [one for some in self.fleet.in_pool(pool).values() for _, one in some]
            row, charge = self.fleet.row, self.fleet.charge
            each = [
                (device.kind, float(charge[row[device.id]]) * device.capacity_milli * len(one.nodes))
                for one in alike
                for device in one.sample.devices
            ]
            special = [held for kind, held in each if is_accelerator(kind)] or [held for _kind, held in each]
            self._sizes[pool] = math.fsum(special) / 1000
        return self._sizes[pool]

    def _forget_charges(self) -> None:
        """Recompute the charges of stages and pools after a change of devices."""
        self.heads = Heads()
        # By tier of the pending table, and by pool.
        self._tier_charges: list[float] = []
        self._sizes: dict[str, float] = {}


def _charge_of(request: RequestClass, fleet: Fleet) -> float:
    """Return the charge of a second of a stage of this request class on its fastest alternative."""
    feasible = request.fastest
    if feasible is None:
        return 0.0
    rows = [int(rows[rows >= 0][0]) for rows in feasible.rows]
    each = [fleet.charge[row] * ask.count * ask.milli for ask, row in zip(feasible.alternative.asks, rows, strict=True)]
    return float(sum(each)) * request.nodes / 1000
