"""How many replicas a service wants, from what waits and how long the first byte takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.protocol import BOUNDS

# A smaller number counts only when nothing asked for more in this time, in seconds.
STEADY_S: Final = 60.0
# So many answers tell how long the first byte takes.
ENOUGH: Final = 10
TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Signals:
    """What the routers tell: requests that wait, that are answered, times to the first byte of the last minute, and
    how long nobody has asked, in seconds."""

    queued: int = 0
    active: int = 0
    first_bytes: Sequence[int] = ()
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers between which a service scales, and its targets: how many requests a replica has at once, how long
    the first byte may take at the ninetieth percentile, and after how long a quiet service has none."""

    low: int
    high: int
    requests: float
    first_byte_s: float | None = None
    idle_s: float = 300.0


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the upper bound of the interval in which this share of the counted times lies; None without any."""
    total, seen = sum(counts), 0
    for bound, count in zip((*BOUNDS, math.inf), counts, strict=False):
        seen += count
        if total and seen >= share * total:
            return bound
    return None


def asked(now: int, bounds: Bounds, signals: Signals) -> int:
    """Return the number that the signals ask for at this moment, with ``now`` replicas wanted."""
    load = signals.queued + signals.active
    if bounds.low == 0 and not load and signals.quiet_s >= bounds.idle_s:
        return 0
    number = math.ceil(load / bounds.requests - TOLERANCE)
    late = quantile(signals.first_bytes, 0.9) if sum(signals.first_bytes) >= ENOUGH else None
    if bounds.first_byte_s is not None and late is not None and late > bounds.first_byte_s and load:
        number = max(number, now + 1)
    if now or load:
        # None is for what is quiet long enough alone.
        number = max(1, number)
    return min(bounds.high, max(bounds.low, number))


def wanted(
    now: int, bounds: Bounds, signals: Signals, wishes: Sequence[tuple[float, int]], at: float
) -> tuple[int, list[tuple[float, int]]]:
    """Return how many replicas to want from now on, and what was asked for in the last while.

    More are wanted at once; fewer only as the most of the last minute allows, so that nothing flaps.
    """
    number = asked(now, bounds, signals)
    kept = [(time, wish) for time, wish in wishes if at - STEADY_S < time <= at and wish <= bounds.high]
    kept = [*kept[-120:], (at, number)]
    if number >= now or number == 0:
        return number, kept
    return min(now, max(wish for _, wish in kept)), kept
