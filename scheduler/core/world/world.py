"""The planner's state: nodes, free capacity, running and waiting stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from scheduler.core.model.profile import Profile
from scheduler.core.model.rights import QuotaRights
from scheduler.core.model.types import (
    CalendarEntry,
    Grant,
    Node,
    Pool,
    Project,
    Promise,
    Quota,
    Running,
    Snapshot,
    Stage,
)
from scheduler.core.resources.fleet import Fleet
from scheduler.core.resources.holdings import Holdings
from scheduler.core.resources.ledger import Ledger
from scheduler.core.resources.timetable import Timetable
from scheduler.core.world import request_class as request_classes
from scheduler.core.world.pending import Column, PendingTable
from scheduler.core.world.request_class import FeasibleSet, RequestClass
from scheduler.core.world.victim_index import VictimIndex

# So many request classes without a waiting stage, groups without one and known alternatives are kept in any case: who
# submits one job after another asks for the same again and again.
SPARE: Final = 64


class World:
    """The state at ``now``, the only clock: nodes, ledger, timetable, running and waiting stages.

    ``freed`` are the node rows on which something was released since the last snapshot; ``None`` if there was no last
    snapshot.
    """

    def __init__(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile], now: float) -> None:
        self.snapshot, self._profiles, self.now = snapshot, profiles, now
        self._quotas: tuple[Quota, ...] = ()
        self.rights = QuotaRights(())
        self.pools: dict[str, Pool] = {}
        self.projects: dict[str, Project] = {}

    def _begin(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile]) -> None:
        """Reset the whole state."""
        self.snapshot, self._profiles = snapshot, profiles
        self.nodes: dict[str, Node] = {node.id: node for node in snapshot.nodes}
        self._fenced = {node.id: node for node in snapshot.nodes if any(one.fenced_for for one in node.devices)}
        self.fleet = Fleet(snapshot.nodes)
        self.ledger = Ledger(self.fleet)
        self.table = Timetable(self.fleet)
        self._close(snapshot.maintenance)
        self.pending = PendingTable()
        self.victim_index = VictimIndex(self.fleet)
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Stage] = {}
        self.held = Holdings()
        self.freed: set[int] | None = None
        if snapshot.given_back is not None:
            self.freed = {row for name in snapshot.given_back if (row := self.fleet.node_row.get(name)) is not None}
        self._requests: dict[object, RequestClass] = {}
        self._request_of: dict[object, tuple[object, RequestClass]] = {}
        # Of the very stages that wait, by identity: nobody else can have it while they do.
        self._request_here: dict[int, RequestClass] = {}
        # How often the state was brought up to date since.
        self._looks = 0

    def _take_over(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile], now: float) -> None:
        """Set the snapshot with its pools, projects and quotas; nodes and stages are handled by the deltas."""
        self.snapshot, self.now, self._profiles = snapshot, now, profiles
        self.pools = {pool.name: pool for pool in snapshot.pools}
        self.projects = {project.id: project for project in snapshot.projects}
        if snapshot.quotas is not self._quotas:
            self._quotas, self.rights = snapshot.quotas, QuotaRights(snapshot.quotas)
        self._positions: Column | None = None

    # -- pools and the queue ---------------------------------------------------------------------------------------

    def profile(self, pool: str) -> Profile:
        profiles = self._profiles
        return profiles if isinstance(profiles, Profile) else profiles[pool]

    @contextmanager
    def trial(self) -> Iterator[Ledger]:
        """Context manager: the ledger for trials; all claims and releases in the block are undone at its end."""
        mark = self.ledger.checkpoint()
        try:
            yield self.ledger
        finally:
            self.ledger.rollback(mark)

    def takes_turns(self, pool: str) -> bool:
        """Return whether the pool uses time sharing."""
        return self.profile(pool).rotates != "none"

    def positions(self, slots: Column) -> Column:
        """Return the queue position of each slot of the pending table; ``slots`` are the slots in queue order."""
        if self._positions is None:
            self._positions = np.zeros(len(self.pending.priority), dtype=np.int64)
            self._positions[slots] = np.arange(len(slots))
        return self._positions

    # -- requests ---------------------------------------------------------------------------------------------------

    def request_class(self, stage: Stage) -> RequestClass:
        """Return the request class of the stage.

        Stages keep their alternatives alive, so the identity of these can be a key.
        """
        mine = self._request_here.get(id(stage))
        return mine if mine is not None else self._find_request(stage)

    def _find_request(self, stage: Stage) -> RequestClass:
        near = (id(stage.alternatives), stage.pool, stage.nodes, stage.kind, stage.precision)
        if stage.pinned or stage.avoid or stage.only or stage.mounts:
            near = (*near, stage.pinned, stage.avoid, stage.only, stage.mounts)  # type: ignore[assignment]
        if stage.site or stage.within:
            near = (*near, stage.site, stage.within, stage.within_required)  # type: ignore[assignment]
        if stage.reservation:
            kept = self.reservation_of(stage)
            inside = kept.nodes if kept else ()
            near = (*near, stage.reservation, inside)  # type: ignore[assignment]
            pinned = tuple(name for name in stage.pinned if name in inside) if stage.pinned else inside
            stage = replace(stage, pinned=pinned)
        known = self._request_of.get(near)
        if known is None or known[0] is not stage.alternatives:
            key = (stage.alternatives, *near[1:])
            found = self._requests.get(key)
            if found is None:
                profile = self.profile(stage.pool)
                found = self._requests[key] = request_classes.work_out(stage, self.fleet, profile, self.snapshot.speeds)
            known = self._request_of[near] = (stage.alternatives, found)
        known[1].asked_in = self._looks
        return known[1]

    def _forget_requests(self, used: Iterable[FeasibleSet]) -> bool:
        """Drop request classes of stages that left, once there are more of these than ``SPARE`` and than others.

        Kept are those that somebody asked for since the look before, as for running stages, and those whose feasible
        sets are ``used``. Returns whether any was dropped.
        """
        if len(self._request_of) > 2 * (len(self._request_here) + len(self.running)) + SPARE:
            self._request_of.clear()
        idle = [key for key, one in self._requests.items() if not one.members]
        if len(idle) <= max(SPARE, len(self._requests) - len(idle)):
            return False
        here = {id(one) for one in used}
        gone = [
            key
            for key in idle
            if self._requests[key].asked_in < self._looks - 1
            and here.isdisjoint(id(one) for one in self._requests[key].every)
        ]
        for key in gone:
            del self._requests[key]
        if gone:
            self._request_of.clear()
        return bool(gone)

    def group(self, stage: Stage) -> tuple[object, ...]:
        """Return the key of stages that admission and feasibility treat alike."""
        return self.request_class(stage), stage.project, stage.user, stage.priority

    def feasible_set_of(self, request: RequestClass, promise: Promise) -> FeasibleSet | None:
        """Return the feasible set of a promise, if all its nodes and devices can still be used."""
        for feasible in request.feasible_sets:
            if (
                feasible.alternative.index == promise.placement.alternative
                and len(promise.placement.nodes) == request.nodes
            ):
                for node, grants in zip(promise.placement.nodes, promise.placement.grants, strict=True):
                    row = self.fleet.node_row.get(node)
                    line = feasible.line_of(row) if row is not None else None
                    if line is None:
                        break
                    usable = {int(row) for rows in feasible.rows for row in rows[line]}
                    if not all(self.fleet.row.get(one.device, -2) in usable for one in grants):
                        break
                else:
                    return feasible
        return None

    # -- the calendar, and what is given back -----------------------------------------------------------------------

    def _open(self, windows: Iterable[CalendarEntry], *, anew: bool) -> None:
        """Remove calendar entries from the timetable. Unless they are entered ``anew``, reservations on these
        nodes may move earlier."""
        for window in windows:
            self.table.drop(f"maintenance {window.id}")
            self.table.keep_no_more(window.id)
            if self.freed is not None and not anew:
                rows = (self.fleet.node_row.get(name) for name in window.nodes)
                self.freed.update(row for row in rows if row is not None)

    def _close(self, windows: Iterable[CalendarEntry]) -> None:
        """Enter calendar entries into the timetable."""
        self.closed: dict[str, list[CalendarEntry]] = {}
        self.reserved: dict[str, list[CalendarEntry]] = {}
        for window in sorted(windows, key=lambda one: (one.start_at, one.id)):
            nodes = [self.nodes[name] for name in window.nodes if name in self.nodes]
            for node in nodes:
                self.closed.setdefault(node.id, []).append(window)
            if window.reserved:
                self.reserved.setdefault(window.reserved, []).append(window)
                rows = [self.fleet.row[device.id] for node in nodes for device in node.devices]
                self.table.keep(window.id, rows, window.start_at, window.end_at, window.reserved)
                continue
            grants = [
                Grant(device.id, device.capacity_milli, device.memory_bytes)
                for node in nodes
                for device in node.devices
            ]
            self.table.take(f"maintenance {window.id}", grants, window.start_at, window.end_at, window.end_at)

    def closing(self, nodes: Iterable[str], since: float, until: float, reservation: str = "") -> CalendarEntry | None:
        """Return the first calendar entry of one of these nodes that overlaps this time and is not of this
        reservation."""
        for node in nodes if self.closed else ():
            for window in self.closed.get(node, ()):
                if (
                    window.start_at < until
                    and window.end_at > since
                    and (not window.reserved or window.reserved != reservation)
                ):
                    return window
        return None

    def reservation_of(self, stage: Stage) -> CalendarEntry | None:
        """Return the time in which the reservation of a stage holds now or next; ``None`` if it is over."""
        return next((one for one in self.reserved.get(stage.reservation, ()) if one.end_at > self.now), None)

    def free(self, grants: Iterable[Grant]) -> None:
        """Note that something on these nodes may be had earlier than before."""
        if self.freed is not None:
            rows = (self.fleet.row.get(one.device) for one in grants)
            self.freed.update(self.fleet.owner[row] for row in rows if row is not None)

    def _count(self, project: str, grants: Iterable[Grant], sign: int) -> None:
        self.held.count(project, grants, self.ledger.devices, sign)
