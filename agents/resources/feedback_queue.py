"""A multi-level feedback queue: which of the parts that share a device may run now.

Pure: it decides, and the caller suspends and resumes. One part runs at a time. A new part enters the top level; one
that uses up its level's quantum goes one level down, so short work finishes before long work without anybody knowing
run times. Parts that waited too long go back to the top from time to time, so none starves.

After Corbató et al., "An experimental time-sharing system" (1962), with the boost of Solaris's time-sharing class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Seconds of use per level, shortest first, and the longest that a part may wait before it is moved to the top."""

    quanta_s: tuple[float, ...] = (0.25, 1.0, 5.0)
    boost_s: float = 20.0


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """What was requested for a part: to stay on a level (negative ones count from the last), and turns of this
    length."""

    level: int | None = None
    quantum_s: float | None = None


_NO_WISH = QueueRequest()


@dataclass(frozen=True, slots=True)
class Item:
    """One part in the queue. ``spent_s`` counts against its level's quantum, ``used_s`` is all that it used."""

    part: str
    used_s: float
    waits_since: float
    level: int = 0
    spent_s: float = 0.0
    wish: QueueRequest = _NO_WISH

    def quantum_s(self, rules: QueueRules) -> float:
        """Return how much it may use before its turn ends."""
        return self.wish.quantum_s or rules.quanta_s[self.level]

    def below(self, rules: QueueRules) -> int:
        """Return the level that it goes to when its turn has ended."""
        last = len(rules.quanta_s) - 1
        if self.wish.level is not None:
            return self.wish.level % len(rules.quanta_s)
        return min(self.level + 1, last)


@dataclass(frozen=True, slots=True)
class FeedbackQueue:
    """All parts that share a device, in order within each level, and the one whose turn it is."""

    items: tuple[Item, ...] = ()
    running: str | None = None
    rules: QueueRules = field(default_factory=QueueRules)

    @property
    def paused(self) -> frozenset[str]:
        """The parts that must not run now."""
        return frozenset(item.part for item in self.items if item.part != self.running)


def turn(
    queue: FeedbackQueue, now: float, used_s: Mapping[str, float], wishes: Mapping[str, QueueRequest] | None = None
) -> FeedbackQueue:
    """Return the queue as of ``now``. ``used_s`` is, for every part that is there, how long it has used the device,
    ever.

    A part that is not in ``used_s`` has left. A new part enters the top level, behind other new ones. A part with a new
    request for a level moves there at once, behind those on it.
    """
    wishes = wishes or {}
    items = [item for item in queue.items if item.part in used_s]
    present = {item.part for item in items}
    items += [Item(part, used, now) for part, used in used_s.items() if part not in present]
    items = _wished(items, wishes, queue.rules)
    running = queue.running if queue.running in used_s else None
    items = [_charged(item, used_s[item.part], now, item.part == running) for item in items]
    items, ran_out = _demoted(items, running, queue.rules)
    if ran_out:
        running = None
    items, lifted = _boosted(items, running, now, queue.rules)
    best = _first(items)
    if best is not None and running is not None:
        holder = next(item for item in items if item.part == running)
        # The running part goes on until its quantum ends or one of a better level arrives.
        if holder.level <= best.level and not lifted:
            best = holder
    items = [replace(item, waits_since=now) if item is best else item for item in items]
    return replace(queue, items=tuple(items), running=best.part if best else None)


def _wished(items: list[Item], wishes: Mapping[str, QueueRequest], rules: QueueRules) -> list[Item]:
    """Return all parts with their present requests; a part that is to stay on another level than before moves to its
    end."""
    stay: list[Item] = []
    moved: list[Item] = []
    for item in items:
        wish = wishes.get(item.part, _NO_WISH)
        if wish.level == item.wish.level:
            stay.append(replace(item, wish=wish))
        else:
            # A withdrawn request counts as a new arrival, because its level would be unknown.
            level = 0 if wish.level is None else wish.level % len(rules.quanta_s)
            moved.append(replace(item, wish=wish, level=level, spent_s=0.0))
    return stay + moved


def _charged(item: Item, used_s: float, now: float, is_running: bool) -> Item:
    spent = item.spent_s + max(0.0, used_s - item.used_s)
    return replace(item, used_s=used_s, spent_s=spent, waits_since=now if is_running else item.waits_since)


def _demoted(items: list[Item], running: str | None, rules: QueueRules) -> tuple[list[Item], bool]:
    """Move parts that used up their quantum a level down, to its end; on the last level they go to its end."""
    holder = next((item for item in items if item.part == running), None)
    if holder is None or holder.spent_s < holder.quantum_s(rules):
        return items, False
    down = replace(holder, level=holder.below(rules), spent_s=0.0)
    return [*(item for item in items if item is not holder), down], True


def _boosted(items: list[Item], running: str | None, now: float, rules: QueueRules) -> tuple[list[Item], bool]:
    """Move parts that waited too long to the front of the top level, the longest waiter first."""
    starving = [item for item in items if item.part != running and now - item.waits_since >= rules.boost_s]
    starving.sort(key=lambda item: item.waits_since)
    lifted = [replace(item, level=0, spent_s=0.0) for item in starving]
    return [*lifted, *(item for item in items if item not in starving)], bool(lifted)


def _first(items: list[Item]) -> Item | None:
    """Return the first part of the best level; at the top, parts that never ran come before those that ran for a
    while."""
    return min(items, key=lambda item: (item.level, item.level == 0 and item.spent_s > 0), default=None)
