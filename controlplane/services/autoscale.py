"""How many replicas a service wants, from the load that is to be expected and how long the first byte takes. Pure.

A replica that is started now serves after its start delay, so that what counts is the load then: the smoothed load of
the last seconds and, where it grows, its growth in the last two minutes carried on for as long as a start takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.protocol import BOUNDS

# A smaller number counts only when nothing asked for more in this time, in seconds.
STEADY_S: Final = 60.0
# The load is smoothed over so many seconds, and its growth is that of so many.
SMOOTH_S: Final = 10.0
TREND_S: Final = 120.0
# One moment is kept for so many seconds.
SLOT_S: Final = 5.0
# What is expected is at most so many times what is there, and no start takes longer than this.
MOST_GROWTH: Final = 2.0
LONGEST_START_S: Final = 600.0
# As long as no start was seen.
USUAL_START_S: Final = 5.0
# So many answers tell how long the first byte takes; more for a late one are asked for once in this time.
ENOUGH: Final = 10
LATE_S: Final = 30.0
TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Signals:
    """What the routers tell: requests that wait, that are answered, tokens that these have to read and write, times to
    the first byte of the last minute, and how long nobody has asked, in seconds. ``start_s`` is how long a replica
    takes to start."""

    queued: int = 0
    active: int = 0
    first_bytes: Sequence[int] = ()
    quiet_s: float = 0.0
    tokens: int = 0
    start_s: float = USUAL_START_S

    @property
    def load(self) -> int:
        return self.queued + self.active


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers between which a service scales, and its targets: how many requests a replica has at once, how many
    tokens these may have to read and write, how long the first byte may take at the ninetieth percentile, and after how
    long a quiet service has none."""

    low: int
    high: int
    requests: float
    first_byte_s: float | None = None
    idle_s: float = 300.0
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """What was asked for at a time in seconds, and the smoothed load in replicas; ``is_late`` where it was asked for
    because of a late first byte."""

    at: float
    asked: int
    load: float
    is_late: bool = False


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the upper bound of the interval in which this share of the counted times lies; None without any."""
    total, seen = sum(counts), 0
    for bound, count in zip((*BOUNDS, math.inf), counts, strict=False):
        seen += count
        if total and seen >= share * total:
            return bound
    return None


def in_replicas(bounds: Bounds, signals: Signals) -> float:
    """Return how many replicas the load of this moment keeps busy."""
    by_tokens = signals.tokens / bounds.tokens if bounds.tokens else 0.0
    return max(signals.load / bounds.requests, by_tokens)


def smoothed(load: float, history: Sequence[Moment], at: float) -> float:
    """Return the load with that of the last seconds, the older counting less."""
    if not history:
        return load
    share = math.exp(-max(0.0, at - history[-1].at) / SMOOTH_S)
    return share * history[-1].load + (1 - share) * load


def growth(history: Sequence[Moment], at: float) -> float:
    """Return by how many replicas a second the load grows: the slope of the line of least squares, 0 if it falls."""
    kept = [one for one in history if at - TREND_S < one.at <= at]
    if len(kept) < 3 or kept[-1].at - kept[0].at < TREND_S / 4:
        return 0.0
    middle = sum(one.at for one in kept) / len(kept)
    above = sum((one.at - middle) * one.load for one in kept)
    return max(0.0, above / sum((one.at - middle) ** 2 for one in kept))


def asked(bounds: Bounds, signals: Signals, expected: float) -> int:
    """Return the number that this moment asks for, with so many replicas expected to be busy."""
    if bounds.low == 0 and not signals.load and signals.quiet_s >= bounds.idle_s:
        return 0
    # None is for what is quiet long enough alone.
    number = max(1, math.ceil(expected - TOLERANCE))
    return min(bounds.high, max(bounds.low, number))


def wanted(
    now: int, bounds: Bounds, signals: Signals, history: Sequence[Moment], at: float
) -> tuple[int, list[Moment]]:
    """Return how many replicas to want from now on, and what to remember for the next time.

    More are wanted at once; fewer only as the most of the last minute allows, of which all must be known. After a rise
    no fall comes for a minute, so that nothing flaps.
    """
    now = min(now, bounds.high)
    kept = [one for one in history if at - TREND_S < one.at <= at and one.asked <= bounds.high]
    present = in_replicas(bounds, signals)
    level = smoothed(present, kept, at)
    ahead = growth(kept, at) * min(max(signals.start_s, 0.0), LONGEST_START_S)
    # What waits for a place is there already, whatever the average says.
    expected = min(max(level + ahead, present if signals.queued else 0.0), MOST_GROWTH * max(level, present))
    number = asked(bounds, signals, expected)
    is_late = _is_late(bounds, signals) and not any(one.is_late for one in kept if at - one.at < LATE_S)
    if is_late and number and now + 1 > number:
        number = min(bounds.high, now + 1)
    else:
        is_late = False
    moment = Moment(at, number, level, is_late)
    if number >= now or number == 0:
        return number, _with(kept, moment)
    minute = [one.asked for one in kept if at - one.at <= STEADY_S]
    is_calm = bool(kept) and at - kept[0].at >= STEADY_S
    return (min(now, max(number, *minute)) if is_calm else now), _with(kept, moment)


def _is_late(bounds: Bounds, signals: Signals) -> bool:
    late = quantile(signals.first_bytes, 0.9) if sum(signals.first_bytes) >= ENOUGH else None
    return bounds.first_byte_s is not None and late is not None and late > bounds.first_byte_s and signals.load > 0


def _with(kept: list[Moment], new: Moment) -> list[Moment]:
    """Add a moment; one that follows soon takes the place of the last, with the most that either asked for."""
    before = kept[-2].at if len(kept) > 1 else -math.inf
    if not kept or kept[-1].at - before >= SLOT_S or len(kept) == 1:
        return [*kept, new]
    last = kept[-1]
    return [*kept[:-1], Moment(new.at, max(last.asked, new.asked), new.load, last.is_late or new.is_late)]
