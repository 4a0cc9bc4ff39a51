"""How late promised starts come, so that a promise can be a range that nine of ten are kept by.

The timetable has a stage start where it would if everything went as predicted. How many seconds later such stages did
begin is counted, and the next promise ends so much after its point that it would have covered nine of ten of the latest
ones (split conformal prediction on a moving window; Vovk, Gammerman and Shafer 2005). Those that still wait will have
been later than they are now, which the product-limit estimate takes into account: a bad hour is noticed while it lasts.
As the window is no guarantee when times change, the share that is aimed at is raised where promises were missed, and
lowered again slowly where they were kept (adaptive conformal inference; Gibbs and Candès 2021).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler.core.world.lateness import PromiseClass, everybody
from scheduler.predict.evidence import product_limit

SHARE: Final = 0.9
# The newest count, and fewer than this say nothing.
WINDOW: Final = 500
ENOUGH: Final = 20
# How far one promise moves the share that is aimed at, and how far that goes.
_RATE: Final = 0.01
_MOST: Final = 0.99
# What is said is worked out anew at most so often.
_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Open:
    """A promise whose stage has not begun."""

    start_at: float
    late_at: float
    classes: tuple[PromiseClass, PromiseClass]


@dataclass(slots=True)
class _Record:
    """What became of promises that are alike: seconds after their point, the newest last; and the share aimed at."""

    late_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    aim: float = SHARE


class Lateness:
    """The promises of a cluster and what became of them. ``see`` is told of each plan, in order of time."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._records: dict[PromiseClass, _Record] = {}
        self._known: dict[PromiseClass, float] = {}
        self._stale = False
        self._read_at = float("-inf")

    def promised(self, name: str, kind: PromiseClass, start_at: float, late_at: float) -> None:
        """The stage of this id and class was given a promise; only its first one counts."""
        self._open.setdefault(name, _Open(start_at, late_at, (kind, everybody(kind[0]))))

    def began(self, names: Iterable[str], now: float) -> None:
        """These stages begin now."""
        for name in names:
            one = self._open.pop(name, None)
            if one is None:
                continue
            self._stale = True
            missed = now > one.late_at + 1.0
            for key in one.classes:
                record = self._records.setdefault(key, _Record())
                record.late_s.append(now - one.start_at)
                record.aim = min(max(record.aim + _RATE * (SHARE - 1.0 + missed), SHARE), _MOST)

    def slack(self, now: float) -> Mapping[PromiseClass, float]:
        """By how many seconds after their point promises should end, where enough of their class are known."""
        if self._stale and now - self._read_at >= _EVERY_S:
            waits: dict[PromiseClass, list[float]] = {}
            for one in self._open.values():
                for key in one.classes:
                    waits.setdefault(key, []).append(now - one.start_at)
            self._known = {
                key: _quantile(record.late_s, waits.get(key, []), record.aim)
                for key, record in sorted(self._records.items())
                if len(record.late_s) >= ENOUGH
            }
            self._stale, self._read_at = False, now
        return self._known


def _quantile(done: Iterable[float], so_far: Iterable[float], share: float) -> float:
    """What the next one lies below with that probability; the most that was seen where nobody knows."""
    known, spent = np.sort(np.fromiter(done, float)), np.sort(np.fromiter(so_far, float))
    weights, _ = product_limit(known, spent)
    total = np.cumsum(weights)
    place = int(np.searchsorted(total, share * (1.0 + 1.0 / len(known)) - 1e-9))
    if place < len(known):
        return float(known[place])
    return float(max(known[-1], spent[-1] if len(spent) else known[-1]))
