"""Applies what changed between two snapshots to the planner's state, and finds whom the changes concern.

Unchanged rows are recognised by identity: the same object is the same stage. The decisions of the last cycle are undone
first; the new snapshot tells what became of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from scheduler.core.model import fences
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import CalendarEntry, News, Node, Running, Snapshot, Stage
from scheduler.core.world import request_class as request_classes
from scheduler.core.world.decisions import Decisions
from scheduler.core.world.occupancy import GOES_ON
from scheduler.core.world.request_class import RequestClass
from scheduler.core.world.reservation import grants_of
from scheduler.core.world.world import SPARE

T = TypeVar("T", Stage, Running, Node)
# Of more newcomers than this the columns of the queue are written as columns.
FEW = 32


@dataclass(slots=True)
class Again:
    """What must be computed again after a change.

    ``nodes`` are those that look different to some request, ``pools`` those with another profile, ``kinds`` the kinds
    of stages with another speed; then stages that are entered anew, and ``stirred``, those whose reservation may move
    for another reason. ``is_usual_other`` tells that the typical requests changed.
    """

    nodes: set[str] = field(default_factory=set)
    pools: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    unsettled: set[str] = field(default_factory=set)
    is_usual_other: bool = False

    def __bool__(self) -> bool:
        return bool(self.nodes or self.pools or self.kinds or self.is_usual_other)


class Deltas(Decisions):
    """The planner's state, brought from snapshot to snapshot at a cost proportional to what changed."""

    def __init__(
        self,
        snapshot: Snapshot,
        profiles: Profile | Mapping[str, Profile],
        now: float,
        news: News | None = None,
    ) -> None:
        super().__init__(snapshot, profiles, now)
        self._is_new = True
        self.look(snapshot, profiles, now, news)

    def _begin(self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile]) -> None:
        super()._begin(snapshot, profiles)
        self._serial = -2
        self.gated: set[str] = set()

    def look(
        self,
        snapshot: Snapshot,
        profiles: Profile | Mapping[str, Profile],
        now: float,
        news: News | None = None,
    ) -> None:
        """Update the state to this snapshot.

        With ``news`` from the same store, only the rows that it names are compared, provided that the last snapshot was
        the one before.
        """
        follows, again = False, Again()
        nodes: dict[str, Node | None] = {}
        if self._is_new or now < self.now:
            self._begin(snapshot, profiles)
            self._is_new = False
        else:
            self._undo()
            follows = news is not None and news.serial == self._serial + 1
            if news is not None and follows:
                nodes = {name: one for name, one in news.nodes.items() if self.nodes.get(name) is not one}
            elif snapshot.nodes is not self.snapshot.nodes:
                nodes = _differences(self.nodes, snapshot.nodes)
            nodes = {name: one for name, one in nodes.items() if self.nodes.get(name) != one}
            again = self._concerned(snapshot, profiles, nodes)
        windows = self.snapshot.maintenance
        self._looks += 1
        self._take_over(snapshot, profiles, now)
        self._begin_cycle()
        self.unsettled = set(snapshot.unsettled) | again.unsettled
        for one in self._requests.values():
            one.evictions_refused.clear()
            for feasible in one.feasible_sets:
                feasible.forget()
        if news is None or not follows:
            running = _differences(self.running, snapshot.running)
            waiting = _differences(self.waiting, snapshot.waiting)
        else:
            running = {**self._undone, **news.running}
            waiting = {name: one for name, one in news.waiting.items() if self.waiting.get(name) is not one}
        self._undone = {}
        self._serial = news.serial if news is not None else -2
        begun = self._begun
        running = {**{name: self.running[name] for name in again.running if name in self.running}, **running}
        for name in running:
            if name in self.running:
                self._leave(self.running.pop(name))
        again.waiting |= self._see_nodes(nodes, again, windows)
        waiting = {**{name: self.waiting[name] for name in again.waiting if name in self.waiting}, **waiting}
        self._see_running(running)
        for name, option in begun.items():
            if name not in self.running:
                self.free(option.grants)
        self.ledger.settle()
        self._see_waiting(waiting)
        self._see_promises()
        self._see_fences()
        self._forget_who_left()

    def _forget_who_left(self) -> None:
        """Drop what is kept of requests and owners that nobody waits with, now and then: it costs no more than it did
        to keep it."""
        is_less = self._forget_requests(one.option.feasible for one in self.reservations.values())
        if is_less or len(self.pending.groups) > 2 * len(self.pending) + SPARE:
            self.pending.forget_groups()
            self._forget_charges()

    def _see_fences(self) -> None:
        """Note for whom devices were freed and until when they are kept, and which stages are being stopped for
        whom."""
        self.fences = {
            device.id: device.fenced_for
            for node in self._fenced.values()
            for device in node.devices
            if device.fenced_for is not None and device.fenced_for in self.waiting
        }
        self.fence_ends = {
            device.id: device.fenced_until or fences.until(self.now, ())
            for node in self._fenced.values()
            for device in node.devices
            if device.id in self.fences
        }
        for name in sorted(self._told_to_stop):
            stage = self.running[name]
            if stage.evicted_for in self.waiting:
                self.evicting.setdefault(str(stage.evicted_for), []).append(stage)
                self._expect(stage.project, grants_of(stage), -1)
        for name in self.evicting:
            if name in self.reservations:
                self._expect(self.waiting[name].project, self.reservations[name].option.grants, 1)
        self.owners = {owner for owner in self.fences.values() if owner} | set(self.evicting)

    def _concerned(
        self, snapshot: Snapshot, profiles: Profile | Mapping[str, Profile], nodes: Mapping[str, Node | None]
    ) -> Again:
        """Return whom the changes of nodes, pools, profiles and measured speeds concern. Removes the reservations on
        these nodes."""
        before, found = self.snapshot, Again()
        names = {one.name for one in snapshot.pools} | {one.name for one in before.pools}
        if snapshot.pools != before.pools:
            known, now = {one.name: one for one in before.pools}, {one.name: one for one in snapshot.pools}
            found.unsettled = {
                name for name, one in self.reservations.items() if known.get(one.stage.pool) != now.get(one.stage.pool)
            }
            found.is_usual_other = [one.typical for one in before.pools] != [one.typical for one in snapshot.pools]
        if profiles is not self._profiles and profiles != self._profiles:
            found.pools = {name for name in names if _profile_of(profiles, name) != _profile_of(self._profiles, name)}
        if snapshot.speeds != before.speeds:
            keys = {*snapshot.speeds, *before.speeds}
            found.kinds = {key[0] for key in keys if snapshot.speeds.get(key) != before.speeds.get(key)}
        if found.pools or found.kinds:
            self._speeds.clear()
            for name, run in self.running.items():
                if run.pool in found.pools or run.kind in found.kinds:
                    found.running.add(name)
            for name, stage in self.waiting.items():
                if stage.pool in found.pools or stage.kind in found.kinds:
                    found.waiting.add(name)
                    self._unreserve_for_now(name)
        for name, one in nodes.items():
            if one is not None and self.fleet.is_like_before(one):
                continue
            found.nodes.add(name)
            if name not in self.fleet.node_row:
                found.running |= {other for other, run in self.running.items() if name in run.placement.nodes}
                continue
            for owner in self.table.owners(self.fleet.rows_at(self.fleet.node_row[name])):
                found.running |= {owner, owner.removesuffix(GOES_ON)} & self.running.keys()
                self._unreserve_for_now(owner)
        return found

    def _see_nodes(
        self, nodes: Mapping[str, Node | None], again: Again, windows: tuple[CalendarEntry, ...]
    ) -> set[str]:
        """Update the nodes and the node classes of all request classes. What ran on the nodes concerned was removed
        before.

        Returns the waiting stages whose feasible sets changed.
        """
        if not nodes and not again and self.snapshot.maintenance == windows:
            return set()
        rows = [self.fleet.node_row[name] for name in nodes if name in self.fleet.node_row]
        deep = {row for name in again.nodes if (row := self.fleet.node_row.get(name)) is not None}
        moved = bool(again.nodes) or self.snapshot.maintenance != windows
        kits = {kit for row in deep if (kit := self.fleet.kit_of(row)) is not None}
        pools = {pool for row in deep for pool in self.fleet.nodes[row].pools}
        seen = [self.fleet.nodes[row] for row in deep]
        if moved:
            self._open(windows, anew=self.snapshot.maintenance == windows)
        for name, node in nodes.items():
            if node is None:
                self.fleet.take_out(name)
                del self.nodes[name]
                self._fenced.pop(name, None)
                continue
            self.fleet.put(node)
            self.nodes[name] = node
            rows.append(self.fleet.node_row[name])
            if name in again.nodes:
                deep.add(self.fleet.node_row[name])
            if any(device.fenced_for for device in node.devices):
                self._fenced[name] = node
            else:
                self._fenced.pop(name, None)
        if deep or again:
            self._forget_charges()
        for row in sorted(deep):
            self.ledger.follow(row)
            self.table.follow(row)
        if self.freed is not None:
            self.freed |= deep
        if moved:
            self._close(self.snapshot.maintenance)
        self.ledger.touched += sorted(set(rows) - deep)
        kits |= {kit for row in deep if (kit := self.fleet.kit_of(row)) is not None}
        pools |= {pool for row in deep for pool in self.fleet.nodes[row].pools}
        seen += [self.fleet.nodes[row] for row in deep]
        concerned = {
            one
            for one in self._requests.values()
            if deep and request_classes.is_concerned(one, self.fleet, kits, pools, seen)
        }
        others = self._see_shapes(sorted(set(rows)), sorted(deep), again, concerned)
        tiers = [code for code, (request, _) in enumerate(self.pending.tiers) if request in others]
        slots = self.pending.slots() if tiers else np.zeros(0, dtype=np.int64)
        return {stage.id for stage in self.pending.stages[slots[np.isin(self.pending.tier[slots], tiers)]]}

    def _see_shapes(
        self, rows: Sequence[int], deep: Sequence[int], again: Again, concerned: Collection[RequestClass]
    ) -> set[RequestClass]:
        """Update the request classes for the nodes in ``rows``.

        ``deep`` are those whose node class changed, which matters to the request classes ``concerned``. Returns the
        request classes whose feasible sets changed.
        """
        others = set()
        if again.pools:
            for key in [key for key, one in self._requests.items() if one.pool not in self.pools]:
                del self._requests[key]
            self._request_of.clear()
        for request in self._requests.values() if rows or again else ():
            profile, speeds = self.profile(request.pool), self.snapshot.speeds
            if request.pool in again.pools or request.sample.kind in again.kinds:
                request_classes.recompute(request, self.fleet, profile, speeds)
            elif request in concerned and request_classes.change(request, self.fleet, profile, speeds, deep):
                others.add(request)
            for feasible in request.every:
                feasible.places.forget(rows)
                if again.is_usual_other:
                    feasible.reevaluate()
        for name in [name for name, one in self.reservations.items() if self.request_class(one.stage) in others]:
            self.unsettled.add(name)
            self._unreserve_for_now(name)
        return others

    def _see_waiting(self, changes: Mapping[str, Stage | None]) -> None:
        for name, new in changes.items():
            if name in self.waiting and (left := self._request_here.pop(id(self.waiting[name]), None)):
                left.members -= 1
            if new is None and name in self.waiting:
                del self.waiting[name]
                self.gated.discard(name)
            if name in self.pending.slot and (new is None or self.takes_turns(new.pool)):
                self.pending.remove(name)
            if name in self.reservations and not self._still_stands(self.reservations[name], new):
                self.free(self.reservations[name].option.grants)
                self.unreserve(name)
        came = [new for new in changes.values() if new is not None]
        self.waiting.update((stage.id, stage) for stage in came)
        for stage in came:
            request = self._request_here[id(stage)] = self._find_request(stage)
            request.members += 1
        turning = {stage.pool for stage in came}
        turning = {pool for pool in turning if self.takes_turns(pool)}
        queued = [stage for stage in came if stage.pool not in turning] if turning else came
        if len(queued) <= FEW:
            for stage in queued:
                group = self.group(stage)
                self.pending.enter(stage, group, (group[0], stage.priority), self._least_s(stage))
        else:
            groups = [self.group(stage) for stage in queued]
            tiers = [(group[0], stage.priority) for group, stage in zip(groups, queued, strict=True)]
            self.pending.fill(queued, groups, tiers, np.array([self._least_s(stage) for stage in queued]))
        for stage in came:
            self._note_waiting(stage)

    def _see_promises(self) -> None:
        """Reset reservations to the stored promises: decisions of the last cycle may not have been applied, and
        reservations that could not be made are tried again."""
        astray, self._astray = self._astray, set()
        for name in sorted((self._rewritten | astray) & self.waiting.keys()):
            stage, reservation = self.waiting[name], self.reservations.get(name)
            if reservation is not None:
                promise = reservation.promise
                is_kept = (
                    self.profile(stage.pool).timetable != "none" and promise.start_at == reservation.option.start_at
                )
                if is_kept and stage.promise == promise:
                    continue
                self.free(self.unreserve(name).option.grants)
            if stage.promise is not None:
                self._reserve_again(stage, stage.promise)
        self._rewritten = set()

    def _note_waiting(self, stage: Stage) -> None:
        """Count a stage in its group and update its reservation."""
        if stage.begin_at is not None or stage.retry_at is not None:
            self.gated.add(stage.id)
        if stage.id in self.reservations:
            old = self.reservations[stage.id].stage
            if (old.unmet, old.awaits, old.begin_at, old.retry_at, old.state) != (
                stage.unmet,
                stage.awaits,
                stage.begin_at,
                stage.retry_at,
                stage.state,
            ):
                self.unsettled.add(stage.id)
            self.reservations[stage.id] = replace(self.reservations[stage.id], stage=stage)
        elif stage.promise is not None:
            self._reserve_again(stage, stage.promise)


def _differences(before: Mapping[str, T], now: Iterable[T]) -> dict[str, T | None]:
    """Return the rows that are new or another object, by id; ``None`` for those that are gone."""
    here = {one.id: one for one in now}
    found: dict[str, T | None] = {name: None for name in before if name not in here}
    found.update((name, one) for name, one in here.items() if before.get(name) is not one)
    return found


def _profile_of(profiles: Profile | Mapping[str, Profile], pool: str) -> Profile | None:
    return profiles if isinstance(profiles, Profile) else profiles.get(pool)
