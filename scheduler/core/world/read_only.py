"""The world as policies see it: everything may be read, nothing can be changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Protocol

from scheduler.core.model.profile import Profile
from scheduler.core.model.rights import QuotaRights
from scheduler.core.model.types import Grant, Node, Pool, Resize, Running, Snapshot, Stage
from scheduler.core.resources.fleet import Fleet
from scheduler.core.resources.holdings import Holdings
from scheduler.core.resources.ledger import FreeDevices, Ledger
from scheduler.core.resources.timetable import Timetable
from scheduler.core.world.pending import PendingTable
from scheduler.core.world.request_class import FeasibleSet, RequestClass
from scheduler.core.world.reservation import Option, TimetableEntry
from scheduler.core.world.victim_index import VictimIndex


class ReadOnlyWorld(Protocol):
    """What :class:`~scheduler.core.world.view.View` shows to a policy. Times are in engine seconds."""

    @property
    def now(self) -> float: ...
    @property
    def snapshot(self) -> Snapshot: ...

    # -- machines ---------------------------------------------------------------------------------------------------
    @property
    def nodes(self) -> Mapping[str, Node]: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def ledger(self) -> FreeDevices:
        """The free capacity of each device now."""

    @property
    def table(self) -> Timetable:
        """The free capacity of each device over time."""

    def trial(self) -> AbstractContextManager[Ledger]:
        """A ledger for trials: claims and releases there are undone at the end of the block."""

    # -- pools and projects -----------------------------------------------------------------------------------------
    @property
    def pools(self) -> Mapping[str, Pool]: ...
    def profile(self, pool: str) -> Profile: ...
    def size(self, pool: str) -> float:
        """The worth of all devices of a pool."""

    @property
    def rights(self) -> QuotaRights: ...
    @property
    def held(self) -> Holdings:
        """What projects hold of each kind and model of device."""

    def weight(self, project: str) -> float: ...
    def share(self, project: str) -> float:
        """The use and holdings of a project, in fair shares: 1 is exactly its part."""

    def taken(self, project: str) -> float:
        """The use of a project, including what it will use until all its running stages end, in weighted
        device-seconds."""

    @property
    def spoken(self) -> Mapping[str, float]:
        """By pool, what all projects have taken and ask for together, in weighted device-seconds."""

    def charge(self, grants: Collection[Grant]) -> float:
        """The charge of a second of these grants in the use of a project."""

    def charge_of(self, stage: Stage) -> float:
        """The charge of a second of the request of a stage."""

    # -- stages -----------------------------------------------------------------------------------------------------
    @property
    def running(self) -> Mapping[str, Running]: ...
    def runs_of(self, user: str) -> AbstractSet[str]:
        """The ids of the running stages of a user."""

    @property
    def victim_index(self) -> VictimIndex:
        """The running stages as columns."""

    @property
    def elastic(self) -> AbstractSet[str]:
        """Ids of the running stages that may have another size."""

    def predicted_end(self, stage: Running, quantile: str, rate: float | None = None) -> float: ...
    @property
    def finish(self) -> Mapping[str, float]:
        """When stages that run or have a reservation will be done."""

    @property
    def waiting(self) -> Mapping[str, Stage]: ...
    @property
    def pending(self) -> PendingTable:
        """The waiting stages as columns."""

    def request_class(self, stage: Stage) -> RequestClass: ...
    def refresh(self, feasible: FeasibleSet, profile: Profile) -> None:
        """Bring up to date where it fits now and how well."""

    def length_s(self, stage: Stage, feasible: FeasibleSet, quantile: str) -> float:
        """How long the stage would run there."""

    # -- what this cycle decided so far -------------------------------------------------------------------------------
    @property
    def ahead(self) -> Mapping[str, int]:
        """By pool, how many stages that wait for devices were looked at already."""

    @property
    def starts(self) -> Mapping[str, Option]: ...
    @property
    def reservations(self) -> Mapping[str, TimetableEntry]: ...
    @property
    def guaranteed(self) -> AbstractSet[str]: ...
    @property
    def chosen_victims(self) -> AbstractSet[str]:
        """Ids of the running stages that are stopped in this cycle."""

    @property
    def resizes(self) -> Sequence[Resize]: ...
    @property
    def evicting(self) -> Mapping[str, Sequence[Running]]:
        """By waiting stage, those that were told to stop for it."""

    @property
    def owners(self) -> AbstractSet[str]:
        """Ids of waiting stages for which devices were freed or are being freed."""

    @property
    def least_priority(self) -> float:
        """The lowest priority of those that run."""
