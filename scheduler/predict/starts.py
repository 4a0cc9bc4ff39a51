"""The outcomes of announced starts: the actual waits in relation to the announced ones.

Each stage counts once, with the first range that was announced. Stages that still wait count by the product-limit
estimate, so a bad hour is noticed while it lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.core.explain.announced import LEAST_S, horizon
from scheduler.core.model.types import Expected, Stage, Turnout
from scheduler.core.world.lateness import PromiseClass, everybody
from scheduler.predict.evidence import product_limit

# The newest are used, and fewer than this not at all.
WINDOW: Final = 200
ENOUGH: Final = 20
LOW_SHARE: Final = 0.1
HIGH_SHARE: Final = 0.9
# A start within this distance of a range is inside it, because of rounding.
STILL_S: Final = 1.0
# The result is computed again at most this often.
_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Announced:
    """The first announced range of a stage, and its actual start; ``None`` while it waits."""

    pool: str
    since: float
    at: float
    low_at: float
    high_at: float
    shown: bool = True
    began_at: float | None = None

    def share(self, now: float) -> float:
        """Return its wait until ``now`` divided by the announced one."""
        return (now - self.since) / max(self.at - self.since, LEAST_S)

    @property
    def held(self) -> bool:
        return self.began_at is not None and self.low_at - STILL_S <= self.began_at <= self.high_at + STILL_S


def first(stage: Stage, expected: Expected) -> Announced:
    """Return the range in the form that is stored."""
    return Announced(stage.pool, expected.since, expected.at, expected.low_at, expected.high_at, expected.known)


def turnouts(known: Iterable[Announced], now: float) -> Mapping[PromiseClass, Turnout]:
    """Return the outcomes of announced starts, by pool and by pool and horizon; ``known`` in the order of the
    starts."""
    by_class: dict[PromiseClass, list[Announced]] = {}
    for one in known:
        for key in (everybody(one.pool), (one.pool, horizon(one.at - one.since))):
            by_class.setdefault(key, []).append(one)
    return {key: _turnout(some, now) for key, some in sorted(by_class.items())}


def _turnout(some: Sequence[Announced], now: float) -> Turnout:
    done = [one for one in some if one.began_at is not None][-WINDOW:]
    # A waiting stage that is not late yet adds nothing.
    waits = [one for one in some if one.began_at is None and now > one.at]
    shown = [one for one in done if one.shown]
    late = [one for one in waits if one.shown and now > one.high_at + STILL_S]
    held, seen = sum(one.held for one in shown), len(shown) + len(late)
    if len(done) < ENOUGH:
        return Turnout(None, None, held, seen)
    shares = np.sort(np.array([one.share(one.began_at or 0.0) for one in done]))
    spent = np.sort(np.array([one.share(now) for one in waits]))
    weights, _ = product_limit(shares, spent)
    total = np.cumsum(weights)
    low = int(np.searchsorted(total, LOW_SHARE * (1.0 - 1.0 / len(shares))))
    high = int(np.searchsorted(total, HIGH_SHARE * (1.0 + 1.0 / len(shares)) - 1e-9))
    longest = max(float(shares[-1]), float(spent[-1]) if len(spent) else 0.0)
    return Turnout(
        round(float(shares[low]), 6), round(float(shares[high]) if high < len(shares) else longest, 6), held, seen
    )


class Starts:
    """The announced starts of a cluster and their outcomes, recorded in order of time."""

    def __init__(self) -> None:
        self._open: dict[str, Announced] = {}
        self._done: deque[Announced] = deque(maxlen=4 * WINDOW)
        self._known: Mapping[PromiseClass, Turnout] = {}
        self._stale, self._read_at = False, float("-inf")

    def announce(self, stage: Stage, expected: Expected) -> None:
        """Record an announced range of a stage; the first one counts."""
        self._open.setdefault(stage.id, first(stage, expected))

    def began(self, names: Iterable[str], now: float) -> None:
        """Record that these stages start now."""
        for name in names:
            one = self._open.pop(name, None)
            if one is not None:
                self._done.append(replace(one, began_at=now))
                self._stale = True

    def forget(self, waiting: Container[str]) -> None:
        """Drop stages that left the queue otherwise; ``waiting`` are those still in it."""
        for name in [name for name in self._open if name not in waiting]:
            del self._open[name]

    def known(self, now: float) -> Mapping[PromiseClass, Turnout]:
        """Return the outcomes of the announced starts."""
        if self._stale and now - self._read_at >= _EVERY_S:
            self._known = turnouts([*self._done, *self._open.values()], now)
            self._stale, self._read_at = False, now
        return self._known
