"""The lateness of promised starts, so that promises can be ranges that nine of ten are kept by.

The timetable gives the start of a stage if everything goes as predicted. The delays of actual starts are recorded, and
the next promise ends so much after its point that it would have covered nine of ten of the latest ones (split conformal
prediction on a moving window; Vovk, Gammerman and Shafer 2005). Stages that still wait will be later than they are now,
which the product-limit estimate takes into account, so a bad hour is noticed while it lasts. Because the window is no
guarantee when times change, the target share is raised after missed promises, and lowered slowly after kept ones
(adaptive conformal inference; Gibbs and Candès 2021).
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
# The newest are used, and fewer than this not at all.
WINDOW: Final = 500
ENOUGH: Final = 20
# How far one promise moves the target share, and its bounds.
_RATE: Final = 0.01
_MOST: Final = 0.99
# The result is computed again at most this often.
_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Open:
    """A promise whose stage has not started."""

    start_at: float
    late_at: float
    classes: tuple[PromiseClass, PromiseClass]


@dataclass(slots=True)
class _Record:
    """The outcomes of similar promises: seconds after their point, the newest last; and the target share."""

    late_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    aim: float = SHARE


class Lateness:
    """The promises of a cluster and their outcomes, recorded in order of time."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._records: dict[PromiseClass, _Record] = {}
        self._known: dict[PromiseClass, float] = {}
        self._stale = False
        self._read_at = float("-inf")

    def promised(self, name: str, kind: PromiseClass, start_at: float, late_at: float) -> None:
        """Record that the stage of this id and class was given a promise; only its first one counts."""
        self._open.setdefault(name, _Open(start_at, late_at, (kind, everybody(kind[0]))))

    def began(self, names: Iterable[str], now: float) -> None:
        """Record that these stages start now."""
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
        """Return how many seconds after their point promises should end, for classes with enough outcomes."""
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
    """Return the value below which the next one lies with that probability; the largest one seen if unknown."""
    known, spent = np.sort(np.fromiter(done, float)), np.sort(np.fromiter(so_far, float))
    weights, _ = product_limit(known, spent)
    total = np.cumsum(weights)
    place = int(np.searchsorted(total, share * (1.0 + 1.0 / len(known)) - 1e-9))
    if place < len(known):
        return float(known[place])
    return float(max(known[-1], spent[-1] if len(spent) else known[-1]))
