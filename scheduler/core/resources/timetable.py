"""The timetable: what will be free of each device, and when a gang could have it.

Conservative backfill (Mu'alem and Feitelson 2001): each device has a step function of free capacity over time. Running
stages and reservations take from it until their predicted ends. The earliest start of a gang is the first time from
which enough nodes have what it asks for its whole length.

Most devices are in one of two simple states: nothing more will be taken than now, or one stage holds them and they are
free from its end on. Arrays mark these, so thousands of nodes are handled at once and only the others one by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scheduler.core.model.kinds import CPU
from scheduler.core.model.partitions import Layout, Partition, can_add
from scheduler.core.model.types import Ask, Device, Grant
from scheduler.core.resources.fleet import Fleet
from scheduler.core.resources.match import Candidate, grant, share_of

if TYPE_CHECKING:
    from scheduler.core.world.request_class import FeasibleSet

Held = tuple[tuple[int, Grant], ...]
FOREVER = float("inf")
# Of more places than this it pays to ask first which cannot be the earliest.
FEW = 4
ALWAYS = -FOREVER
LEAST = -(2**62)
# Columns with a value per device, and their initial values.
_COLUMNS = {
    "_least": 0,
    "_least_memory": 0,
    "_from": ALWAYS,
    "_is_knotted": False,
    "_whole_from": ALWAYS,
    "_capacity": 0,
}


class DeviceLane:
    """The step function of one device: ``milli[i]`` and ``memory[i]`` are free from ``times[i]`` until ``times[i +
    1]``. The first step begins at minus infinity."""

    __slots__ = ("memory", "milli", "times")

    def __init__(self, device: Device) -> None:
        self.times = [ALWAYS]
        self.milli = [device.capacity_milli]
        self.memory = [device.memory_bytes]

    def cut(self, at: float) -> int:
        """The index of the step that begins at ``at``, made where there was none."""
        i = bisect_left(self.times, at)
        if i == len(self.times) or self.times[i] != at:
            self.times.insert(i, at)
            self.milli.insert(i, self.milli[i - 1])
            self.memory.insert(i, self.memory[i - 1])
        return i

    def take(self, start: float, end: float, milli: int, memory: int) -> None:
        """Take from ``start`` until ``end``; negative amounts give back."""
        first = 0 if start == ALWAYS else self.cut(start)
        last = len(self.times) if end == FOREVER else self.cut(end)
        for i in range(first, last):
            self.milli[i] -= milli
            self.memory[i] -= memory
        for i in (last, first):  # steps that no longer step are taken out
            if 0 < i < len(self.times) and self.milli[i] == self.milli[i - 1] and self.memory[i] == self.memory[i - 1]:
                del self.times[i], self.milli[i], self.memory[i]

    def low(self, start: float, end: float) -> tuple[int, int]:
        """The least that is free at any moment from ``start`` until ``end``."""
        i = bisect_right(self.times, start) - 1
        j = bisect_left(self.times, end, i + 1)
        if j - i == 1:
            return self.milli[i], self.memory[i]
        return min(self.milli[i:j]), min(self.memory[i:j])

    def free_from(self, start: float, length_s: float, milli: int, memory: int) -> float:
        """The first time from ``start`` on from which so much is free for so long."""
        times, most = self.times, len(self.times)
        i = bisect_right(times, start) - 1
        at = start
        while i < most:
            if self.milli[i] < milli or self.memory[i] < memory:
                at = FOREVER
            elif at == FOREVER:
                at = times[i]
            i += 1
            if at != FOREVER and (i == most or times[i] >= at + length_s):
                return at
        return FOREVER

    def next_rise(self, after: float) -> float:
        """The first time after ``after`` at which more becomes free."""
        for i in range(bisect_right(self.times, after), len(self.times)):
            if self.milli[i] > self.milli[i - 1] or self.memory[i] > self.memory[i - 1]:
                return self.times[i]
        return FOREVER


@dataclass(frozen=True, slots=True)
class Window:
    """Return the free capacity of each device from ``start`` until ``end``."""

    table: Timetable
    start: float
    end: float
    reservation: str = ""

    def free(self, device: str) -> tuple[int, int]:
        return self.table.low(device, self.start, self.end, self.reservation)

    def layout(self, device: str) -> Layout:
        return self.table.layout(device, self.start, self.end)


class Timetable:
    """Which stage holds what until when, as predicted.

    A device may be kept for who holds a reservation; searches name the reservation that they are for.

    ``take`` may leave less than nothing free: a running stage that overruns overlaps a promise. Such devices are in
    ``oversold`` until the promise is repaired or late, as the profile says.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.oversold: set[int] = set()
        self._row = fleet.row
        self._lanes: list[DeviceLane | None] = [None] * len(fleet.devices)
        self._entries: dict[str, tuple[float, float, Held]] = {}
        # By device: its entries, and the ends that determine the latest of them.
        self._on: list[dict[str, tuple[float, float]]] = [{} for _ in fleet.devices]
        # The least that will ever be free; from when on a plain lane is free altogether; which lanes are not plain.
        self._least: npt.NDArray[np.int64] = np.append(fleet.capacity, -1)
        self._least_memory: npt.NDArray[np.int64] = np.append(fleet.memory, -1)
        self._from: npt.NDArray[np.float64] = np.full(len(fleet.devices) + 1, ALWAYS)
        self._is_knotted: npt.NDArray[np.bool_] = np.zeros(len(fleet.devices) + 1, dtype=np.bool_)
        # The time before which a device is never completely free.
        self._whole_from: npt.NDArray[np.float64] = np.full(len(fleet.devices) + 1, ALWAYS)
        self._capacity = np.append(fleet.capacity, 0)
        # By device: from when until when it is kept for which reservation, first start first; and by entry its devices.
        self._kept: dict[int, list[tuple[float, float, str]]] = {}
        self._keeps: dict[str, tuple[tuple[int, ...], tuple[float, float, str]]] = {}

    def follow(self, node_row: int) -> None:
        """Update a node from the fleet. It may have no entries."""
        fleet = self.fleet
        more = len(fleet.devices) - len(self._lanes)
        if more:
            self._lanes += [None] * more
            self._on += [{} for _ in range(more)]
            for name, filling in _COLUMNS.items():
                column = getattr(self, name)
                setattr(
                    self, name, np.append(np.append(column[:-1], [filling] * more), column[-1:]).astype(column.dtype)
                )
        for row in fleet.rows_at(node_row):
            assert not self._on[row], "its entries were taken out before"
            device = fleet.devices[row]
            self._lanes[row] = None
            self._least[row] = self._capacity[row] = device.capacity_milli
            self._least_memory[row] = device.memory_bytes
            self._from[row] = self._whole_from[row] = ALWAYS
            self._is_knotted[row] = False
            self.oversold.discard(row)

    def fill(self, owners: Sequence[str], holds: Sequence[Held], ends: Sequence[float], lates: Sequence[float]) -> None:
        """Enter many entries at once, each from minus infinity until its end, or at worst its late end.

        ``holds`` are the rows and grants of each. Lanes of devices without entries are made when they are first read.
        """
        rows = np.array([row for held in holds for row, _ in held], dtype=np.int64)
        made = {row for row in rows.tolist() if self._lane(row) is not None}
        for owner, held, end, late in zip(owners, holds, ends, lates, strict=True):
            self._entries[owner] = (ALWAYS, end, held)
            for row, one in held:
                self._on[row][owner] = (end, late)
                if row in made:
                    lane = self._lane(row)
                    assert lane is not None, "it was there before"
                    lane.take(ALWAYS, end, one.milli, one.memory_bytes)
        size = len(self._from)
        until = np.repeat(np.array(ends, dtype=np.float64), [len(held) for held in holds])
        first, last = np.full(size, FOREVER), np.full(size, ALWAYS)
        np.minimum.at(first, rows, until)
        np.maximum.at(last, rows, until)
        np.maximum(self._from, last, out=self._from)
        np.maximum(self._whole_from, last, out=self._whole_from)
        self._is_knotted |= first < last
        milli = [one.milli for held in holds for _, one in held]
        memory = [one.memory_bytes for held in holds for _, one in held]
        self._least -= np.bincount(rows, milli, size).astype(np.int64)
        self._least_memory -= np.bincount(rows, memory, size).astype(np.int64)
        self.oversold.update(np.flatnonzero((self._least[:-1] < 0) | (self._least_memory[:-1] < 0)).tolist())
        for row in made:
            lane = self._lane(row)
            assert lane is not None, "it was there before"
            self._note(row, lane)

    def _lane(self, row: int) -> DeviceLane | None:
        """Return the lane of a device; ``None`` if it has no entry."""
        lane = self._lanes[row]
        if lane is None and self._on[row]:
            lane = self._lanes[row] = DeviceLane(self.fleet.devices[row])
            for owner in self._on[row]:
                start, end, known = self._entries[owner]
                for at, one in known:
                    if at == row:
                        lane.take(start, end, one.milli, one.memory_bytes)
        return lane

    def take(self, owner: str, grants: Iterable[Grant], start: float, end: float, late_end: float) -> None:
        """Enter ``owner`` from ``start`` until ``end``, or at worst until ``late_end``."""
        known = tuple((self._row[one.device], one) for one in grants if one.device in self._row)
        self._entries[owner] = (start, end, known)
        for row, one in known:
            lane = self._lane(row)
            if lane is None:
                lane = self._lanes[row] = DeviceLane(self.fleet.devices[row])
            lane.take(start, end, one.milli, one.memory_bytes)
            self._on[row][owner] = (end, late_end)
            self._note(row, lane)

    def drop(self, owner: str) -> None:
        """Remove the entry of ``owner``, if it has one."""
        if owner not in self._entries:
            return
        start, end, known = self._entries[owner]
        lanes = [self._lane(row) for row, _ in known]
        del self._entries[owner]
        for (row, one), lane in zip(known, lanes, strict=True):
            assert lane is not None, "an entry was taken from it"
            lane.take(start, end, -one.milli, -one.memory_bytes)
            self._on[row].pop(owner, None)
            self._note(row, lane)

    def keep(self, entry: str, rows: Iterable[int], start: float, end: float, reservation: str) -> None:
        """Keep these devices for a reservation, from ``start`` until ``end``."""
        span = (start, end, reservation)
        self._keeps[entry] = (tuple(rows), span)
        for row in self._keeps[entry][0]:
            self._kept[row] = sorted([*self._kept.get(row, ()), span])
            lane = self._lane(row)
            if lane is None:
                lane = self._lanes[row] = DeviceLane(self.fleet.devices[row])
            self._note(row, lane)

    def keep_no_more(self, entry: str) -> None:
        """Remove what :meth:`keep` has entered, if it has."""
        rows, span = self._keeps.pop(entry, ((), (0.0, 0.0, "")))
        for row in rows:
            self._kept[row].remove(span)
            if not self._kept[row]:
                del self._kept[row]
            lane = self._lane(row)
            assert lane is not None, "it was made to keep the device"
            self._note(row, lane)

    def _kept_until(self, row: int, start: float, end: float, reservation: str) -> float | None:
        """Return until when a device is kept for others in this time; ``None`` if it is not."""
        spans = self._kept.get(row, ()) if self._kept else ()
        ends = [until for begin, until, holder in spans if begin < end and until > start and holder != reservation]
        return max(ends, default=None)

    def _note(self, row: int, lane: DeviceLane) -> None:
        """Update the arrays for one device."""
        milli, memory = lane.milli, lane.memory
        least, least_memory = min(milli), min(memory)
        # The missing capacity fits the array however many entries overlap: only its sign matters.
        self._least[row], self._least_memory[row] = max(least, LEAST), max(least_memory, LEAST)
        if least < 0 or least_memory < 0:
            self.oversold.add(row)
        else:
            self.oversold.discard(row)
        device = self.fleet.devices[row]
        is_plain = len(milli) <= 2 and milli[-1] == device.capacity_milli and memory[-1] == device.memory_bytes
        self._is_knotted[row] = not is_plain
        self._from[row] = lane.times[-1]
        if self._kept and row in self._kept:  # whether it is free depends on who asks
            self._is_knotted[row] = True
            self._least[row] = min(self._least[row], 0)
            self._from[row] = max(self._from[row], *(until for _, until, _ in self._kept[row]))
        self._whole_from[row] = next(
            (at for at, free in zip(lane.times, milli, strict=True) if free >= device.capacity_milli), FOREVER
        )

    def has(self, owner: str) -> bool:
        return owner in self._entries

    def holds(self, grants: Iterable[Grant], start: float, end: float, reservation: str = "") -> bool:
        """Whether all of ``grants`` are free from ``start`` until ``end``."""
        for one in grants:
            if self._kept_until(self._row[one.device], start, end, reservation) is not None:
                return False
            lane = self._lane(self._row[one.device])
            if lane is None:
                continue
            milli, memory = lane.low(start, end)
            if one.milli > milli or one.memory_bytes > memory:
                return False
            if one.part and not self._can_divide(one.device, self.layout(one.device, start, end), one.part):
                return False
        return True

    def layout(self, device: str, start: float, end: float) -> Layout:
        """Return the partitions of the device that are held at any moment from ``start`` until ``end``."""
        row = self._row[device]
        parts = set()
        for owner in self._on[row]:
            begins, ends, grants = self._entries[owner]
            if begins < end and ends > start:
                parts |= {one.part for at, one in grants if at == row and one.part}
        return tuple(sorted(parts))

    def _can_divide(self, name: str, layout: Layout, part: Partition) -> bool:
        device = self.fleet.devices[self._row[name]]
        return can_add(device.partitions, device.made, layout, part)

    def free_from(self, grants: Sequence[Grant], start: float, length_s: float, reservation: str = "") -> float:
        """The first time from ``start`` on at which ``grants`` are free for so long; ``start`` if there is none."""
        at = start
        while at < FOREVER:
            if self.holds(grants, at, at + length_s, reservation):
                return at
            at = self._next_rise([self._row[one.device] for one in grants], at)
        return start

    def _next_rise(self, rows: Sequence[int], after: float) -> float:
        """Return the first time after ``after`` at which more of one of these devices becomes free, or is kept no
        more."""
        lanes = [self._lane(row) for row in rows]
        rises = [lane.next_rise(after) for lane in lanes if lane]
        kept = [until for row in rows for _, until, _ in self._kept.get(row, ()) if until > after] if self._kept else []
        return min([*rises, *kept], default=FOREVER)

    def late(self, grants: Iterable[Grant], start: float, now: float) -> float:
        """The latest of the bad-case ends of all that must end before ``start`` on these devices."""
        rows = [self._row[one.device] for one in grants if one.device in self._row]
        special = [row for row in rows if self.fleet.devices[row].kind != CPU] or rows
        return max(
            (late for row in special for end, late in self._on[row].values() if now < end <= start),
            default=start,
        )

    def room_s(self, grants: Iterable[Grant], start: float, reservation: str = "") -> float:
        """For how long from ``start`` on ``grants`` stay free."""
        end = FOREVER
        for one in grants:
            for begin, until, holder in self._kept.get(self._row[one.device], ()):
                if until > start and holder != reservation:
                    end = min(end, max(begin, start))
            lane = self._lane(self._row[one.device])
            for i in range(len(lane.times) if lane else 0):
                if lane and (lane.milli[i] < one.milli or lane.memory[i] < one.memory_bytes):
                    after = lane.times[i + 1] if i + 1 < len(lane.times) else FOREVER
                    if after > start:
                        end = min(end, max(lane.times[i], start))
                        break
        return min(end - start, 10 * 365 * 86_400.0)

    def owners(self, rows: Iterable[int]) -> set[str]:
        """Return the stages with an entry on one of these devices."""
        return {owner for row in rows for owner in self._on[row]}

    def in_the_way(self, grants: Iterable[Grant], start: float, end: float) -> list[str]:
        """Return owners of entries that begin after ``start`` and overlap the window on one of these devices, first
        start first."""
        found = set()
        for one in grants:
            for owner in self._on[self._row[one.device]]:
                begins, ends, _ = self._entries[owner]
                if start < begins < end and ends > start:
                    found.add((begins, owner))
        return [owner for _, owner in sorted(found)]

    def earliest(
        self,
        feasible: FeasibleSet,
        count: int,
        length_s: float,
        not_before: float,
        before: float = FOREVER,
        among: Sequence[int] | None = None,
        reservation: str = "",
    ) -> tuple[float, list[tuple[Candidate, tuple[Grant, ...]]]] | None:
        """Return the first start from which ``count`` places of ``feasible`` meet its asks for ``length_s``, and their
        grants.

        Returns ``None`` if there is none before ``before``. ``among`` restricts the search to these places.
        """
        asks = feasible.alternative.asks
        places = np.arange(len(feasible.places)) if among is None else np.asarray(among, dtype=np.int64)
        plain_from, is_plain = self._plain(feasible, places)
        knotted = [int(i) for i in places[~is_plain]]
        ready_from = np.sort(np.maximum(plain_from[is_plain], not_before))
        slots: dict[int, float] = {}
        at = not_before
        if len(ready_from) >= count:
            before = min(before, float(np.nextafter(ready_from[count - 1], FOREVER)))
        bounds = self._bounds(feasible, places[~is_plain]) if count == 1 and len(knotted) > FEW else None
        for j in range(len(knotted)) if bounds is None else np.argsort(bounds, kind="stable").tolist():
            if bounds is not None and bounds[j] >= before:
                break
            first = self._first(asks, feasible.places[knotted[j]], length_s, at, before, reservation)
            if first is not None:
                slots[knotted[j]] = first
                if bounds is not None:  # one place is enough: of the others only those that are no later count
                    before = min(before, float(np.nextafter(first, FOREVER)))
        while True:
            times = np.sort(np.append(ready_from[:count], list(slots.values())))
            if len(times) < count or times[count - 1] >= before:
                return None
            at = float(times[count - 1])
            moved = False
            for i, first in list(slots.items()):
                if first < at:
                    again = self._first(asks, feasible.places[i], length_s, at, before, reservation)
                    if again is None:
                        del slots[i]
                    else:
                        slots[i] = again
                    moved = moved or again != at
            if not moved:
                break
        fits = set(places[is_plain & (np.maximum(plain_from, not_before) <= at)].tolist())
        fits |= {i for i, first in slots.items() if first <= at}
        chosen = []
        for i in sorted(fits)[:count]:
            grants = grant(asks, feasible.places[i], Window(self, at, at + length_s, reservation))
            assert grants is not None, "it was found free"
            chosen.append((feasible.places[i], grants))
        return at, chosen

    def _plain(
        self, feasible: FeasibleSet, places: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return from when on each place meets every ask for ever, and whether no entry after that matters."""
        since = np.full(len(places), ALWAYS)
        is_plain = np.full(len(places), feasible.is_disjoint)
        for ask, rows, need in zip(feasible.alternative.asks, feasible.rows, feasible.needs, strict=True):
            at = rows[places]
            always = (self._least[at] >= need[places]) & (self._least_memory[at] >= ask.memory_bytes)
            free = np.where(always, ALWAYS, self._from[at])
            free[at < 0] = FOREVER
            exact = always | ~self._is_knotted[at] | (at < 0)
            if ask.count == free.shape[1]:
                first = free.max(axis=1)
            else:
                first = np.partition(free, ask.count - 1, axis=1)[:, ask.count - 1]
            since = np.maximum(since, first)
            is_plain &= exact.all(axis=1)
        return since, is_plain

    def soonest(self, feasible: FeasibleSet, among: Sequence[int]) -> float:
        """Return a time before which none of these places can meet the asks."""
        return float(self._bounds(feasible, np.asarray(among, dtype=np.int64)).min())

    def _bounds(self, feasible: FeasibleSet, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return a time before which no place can meet the asks: asks for whole devices need that many free ones."""
        bounds = np.full(len(places), ALWAYS)
        for ask, rows, need in zip(feasible.alternative.asks, feasible.rows, feasible.needs, strict=True):
            at = rows[places]
            whole_from = np.where(need[places] >= self._capacity[at], self._whole_from[at], ALWAYS)
            whole_from[at < 0] = FOREVER
            bounds = np.maximum(bounds, np.partition(whole_from, ask.count - 1, axis=1)[:, ask.count - 1])
        return bounds

    def _first(
        self, asks: Sequence[Ask], place: Candidate, length_s: float, at: float, before: float, reservation: str
    ) -> float | None:
        """Return the first start on one node before ``before``.

        Each step jumps to where every ask has enough devices that are free for the whole length from some time on;
        where no step jumps further, the devices are granted.
        """
        while at < before:
            then = at
            for ask, devices in zip(asks, place.matches, strict=True):
                free_from = []
                for device in devices:
                    milli, memory = share_of(ask, device)
                    free_from.append(self._free_from(self._row[device.id], at, length_s, milli, memory, reservation))
                free_from.sort()
                then = max(then, free_from[ask.count - 1])
            if then == at:
                if grant(asks, place, Window(self, at, at + length_s, reservation)) is not None:
                    return at
                # Two asks want the same device: try the next time at which more becomes free.
                then = self._next_rise([self._row[d.id] for devices in place.matches for d in devices], at)
            at = then
        return None

    def _free_from(self, row: int, start: float, length_s: float, milli: int, memory: int, reservation: str) -> float:
        """Return the first time from ``start`` on from which so much of a device is free for so long, and not kept for
        others."""
        lane, at = self._lane(row), start
        while True:
            at = at if lane is None else lane.free_from(at, length_s, milli, memory)
            kept = self._kept_until(row, at, at + length_s, reservation) if at < FOREVER else None
            if kept is None:
                return at
            at = kept

    def low(self, device: str, start: float, end: float, reservation: str = "") -> tuple[int, int]:
        """The least that is free of a device in between; nothing while it is kept for others."""
        row = self._row[device]
        if self._kept_until(row, start, end, reservation) is not None:
            return 0, 0
        lane = self._lane(row)
        if lane is None:
            known = self.fleet.devices[row]
            return known.capacity_milli, known.memory_bytes
        return lane.low(start, end)
