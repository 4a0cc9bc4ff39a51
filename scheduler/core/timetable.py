"""The reservation profile: what will be free of each device, and when a gang could have it.

Conservative backfill (Mu'alem and Feitelson 2001): each device has a step function of free capacity over time; running
stages and promised entries take from it until their predicted ends; the earliest start of a gang is the first time from
which enough nodes have what it asks for its whole length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from scheduler.core.match import Candidate, grant
from scheduler.core.types import Ask, Device, Grant, Mode

FOREVER = float("inf")


class Lane:
    """One device: ``milli[i]`` and ``memory[i]`` are free from ``times[i]`` until ``times[i + 1]``."""

    __slots__ = ("memory", "milli", "times")

    def __init__(self, device: Device, now: float) -> None:
        self.times = [now]
        self.milli = [device.capacity_milli]
        self.memory = [device.memory_bytes]

    def cut(self, at: float) -> int:
        """The index of the step that begins at ``at``, made where there was none."""
        i = bisect_left(self.times, at)
        if i == len(self.times) or self.times[i] != at:
            i = max(i, 1)
            self.times.insert(i, at)
            self.milli.insert(i, self.milli[i - 1])
            self.memory.insert(i, self.memory[i - 1])
        return i

    def take(self, start: float, end: float, milli: int, memory: int) -> None:
        """Take from ``start`` until ``end``; negative amounts give back."""
        first = self.cut(max(start, self.times[0]))
        last = len(self.times) if end == FOREVER else self.cut(end)
        for i in range(first, last):
            self.milli[i] -= milli
            self.memory[i] -= memory

    def low(self, start: float, end: float) -> tuple[int, int]:
        """The least that is free at any moment from ``start`` until ``end``."""
        i = max(bisect_right(self.times, start) - 1, 0)
        j = bisect_left(self.times, end, i + 1)
        if j - i == 1:
            return self.milli[i], self.memory[i]
        return min(self.milli[i:j]), min(self.memory[i:j])

    def free_from(self, start: float, length_s: float, milli: int, memory: int) -> float:
        """The first time from ``start`` on from which so much is free for so long."""
        times, most = self.times, len(self.times)
        i = max(bisect_right(times, start) - 1, 0)
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


class Timetable:
    """Who holds what until when, as far as it is predicted.

    ``take`` may leave less than nothing: a running stage that overruns stands where another was promised; ``holds``
    then says no, and the promise is repaired or late, as the profile says.
    """

    def __init__(self, devices: dict[str, Device], now: float) -> None:
        self.now = now
        self._devices = devices
        self._lanes: dict[str, Lane] = {}
        self._entries: dict[str, tuple[float, float, tuple[Grant, ...]]] = {}
        self._late: dict[str, list[tuple[float, float]]] = {}

    def take(self, owner: str, grants: Iterable[Grant], start: float, end: float, late_end: float) -> None:
        """Enter ``owner`` from ``start`` until ``end``, or at worst until ``late_end``."""
        known = tuple(grant for grant in grants if grant.device in self._devices)
        self._entries[owner] = (start, end, known)
        for one in known:
            self._lane(one.device).take(start, end, one.milli, one.memory_bytes)
            self._late.setdefault(one.device, []).append((end, late_end))

    def drop(self, owner: str) -> None:
        """Take the entry of ``owner`` out again."""
        start, end, grants = self._entries.pop(owner)
        for one in grants:
            self._lane(one.device).take(start, end, -one.milli, -one.memory_bytes)

    def holds(self, grants: Iterable[Grant], start: float, end: float) -> bool:
        """Whether all of ``grants`` are free from ``start`` until ``end``."""
        for one in grants:
            lane = self._lanes.get(one.device)
            if lane is None:
                continue
            milli, memory = lane.low(start, end)
            if one.milli > milli or one.memory_bytes > memory:
                return False
        return True

    def free_from(self, grants: Sequence[Grant], start: float, length_s: float) -> float:
        """The first time from ``start`` on at which ``grants`` are free for so long; ``start`` if there is none."""
        at = start
        while at < FOREVER:
            if self.holds(grants, at, at + length_s):
                return at
            at = min((self._lanes[g.device].next_rise(at) for g in grants if g.device in self._lanes), default=FOREVER)
        return start

    def late(self, grants: Iterable[Grant], start: float) -> float:
        """The latest of the bad-case ends of all that must end before ``start`` on these devices."""
        chosen = [one for one in grants if one.device in self._devices]
        special = [one for one in chosen if self._devices[one.device].kind != "cpu"] or chosen
        return max(
            (late for one in special for end, late in self._late.get(one.device, ()) if self.now < end <= start),
            default=start,
        )

    def room_s(self, grants: Iterable[Grant], start: float) -> float:
        """For how long from ``start`` on ``grants`` stay free."""
        end = FOREVER
        for one in grants:
            lane = self._lanes.get(one.device)
            for i in range(len(lane.times) if lane else 0):
                if lane and (lane.milli[i] < one.milli or lane.memory[i] < one.memory_bytes):
                    after = lane.times[i + 1] if i + 1 < len(lane.times) else FOREVER
                    if after > start:
                        end = min(end, max(lane.times[i], start))
                        break
        return min(end - start, 10 * 365 * 86_400.0)

    def in_the_way(self, grants: Iterable[Grant], start: float, end: float, among: Iterable[str]) -> list[str]:
        """Owners among ``among`` whose entries overlap the window on one of these devices, first to start first."""
        wanted = {one.device for one in grants}
        found = []
        for owner in among:
            entry = self._entries.get(owner)
            if entry and entry[0] < end and entry[1] > start and any(one.device in wanted for one in entry[2]):
                found.append((entry[0], owner))
        return [owner for _, owner in sorted(found)]

    def earliest(
        self,
        asks: Sequence[Ask],
        places: Sequence[Candidate],
        count: int,
        length_s: float,
        not_before: float,
        before: float = FOREVER,
    ) -> tuple[float, list[tuple[Candidate, tuple[Grant, ...]]]] | None:
        """The first start from which ``count`` of ``places`` meet ``asks`` for ``length_s``, and their grants; ``None``
        where there is none ``before`` then."""
        at = not_before
        found: dict[int, tuple[float, tuple[Grant, ...]]] = {}
        todo: Iterable[int] = range(len(places))
        while True:
            ready = []
            for i in todo:
                slot = self._first(asks, places[i], length_s, at, before)
                if slot is None:
                    found.pop(i, None)
                    continue
                found[i] = slot
                if slot[0] == at:
                    ready.append(i)
                    if len(ready) == count:
                        break
            now_ready = sorted(i for i, slot in found.items() if slot[0] == at)
            if len(now_ready) >= count:
                return at, [(places[i], found[i][1]) for i in now_ready[:count]]
            if len(found) < count:
                return None
            at = sorted(slot[0] for slot in found.values())[count - 1]
            todo = [i for i, slot in found.items() if slot[0] < at]

    def _first(
        self, asks: Sequence[Ask], place: Candidate, length_s: float, at: float, before: float
    ) -> tuple[float, tuple[Grant, ...]] | None:
        """The first start on one node, before ``before``. Each step jumps to where every ask has enough devices that
        are free for the whole length from some time on; at a time where nothing jumps any more, they are granted."""
        while at < before:
            then = at
            for ask, devices in zip(asks, place.matches, strict=True):
                free_from = []
                for device in devices:
                    lane = self._lanes.get(device.id)
                    need = device.capacity_milli if device.mode is Mode.EXCLUSIVE else ask.milli
                    free_from.append(at if lane is None else lane.free_from(at, length_s, need, ask.memory_bytes))
                free_from.sort()
                then = max(then, free_from[ask.count - 1])
            if then == at:
                end = at + length_s
                grants = grant(asks, place, lambda device: self._low(device, at, end))  # noqa: B023
                if grants is not None:
                    return at, grants
                # Two asks want the same device: go on to the next time at which anything changes for the better.
                lanes = [self._lanes[d.id] for devices in place.matches for d in devices if d.id in self._lanes]
                then = min((lane.next_rise(at) for lane in lanes), default=FOREVER)
            at = then
        return None

    def _low(self, device: str, start: float, end: float) -> tuple[int, int]:
        lane = self._lanes.get(device)
        if lane is None:
            known = self._devices[device]
            return known.capacity_milli, known.memory_bytes
        return lane.low(start, end)

    def _lane(self, device: str) -> Lane:
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = Lane(self._devices[device], self.now)
        return lane
