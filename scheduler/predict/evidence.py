"""What one family of stages teaches about the next: the run times of those that finished, and that others still run.

A stage that runs is evidence too: it will have taken longer than it has so far. Kaplan and Meier's product-limit
estimate (1958) takes both kinds into account; without it the first to finish of a burst, which are its short ones,
would speak for all. Where those that run have outlived all that finished, the rest of the distribution is exponential
with the rate that all the time spent so far suggests, cut off at the limit; while little has finished, it is what one
may think of such a family at all (:mod:`scheduler.predict.outlook`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np

from scheduler.predict.outlook import Values, outlook

# Only the newest count: code changes.
RECENT: Final = 500
# A distribution that has no sample stands in for itself by so many equally likely values.
STEPS: Final = 24
_STEP: Final = (np.arange(STEPS) + 0.5) / STEPS
# What one takes to be the spread of a family's run times (of their logarithm) counts as much as so many of its runs;
# with this many they speak for themselves.
_SPREAD: Final = 0.3
_DOUBT: Final = 2.0
_MANY: Final = 50
# Five steps of a normal law, of variance one.
_NORMAL: Final = np.array([-1.4628, -0.5984, 0.0, 0.5984, 1.4628])
# With fewer that finished nobody knows yet what a family is like.
FEW: Final = 200


_STEP_OF_NORMAL: Final = np.array([NormalDist().inv_cdf(float(step)) for step in _STEP])


@dataclass(slots=True)
class Family:
    """Stages that are alike. ``done`` are their run times in the order in which they ended, ``running`` the starts of
    those that have not, in order of time; ``expected_s`` is what is declared of each, and ``speed`` that of the device
    on which the newest ran."""

    done: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    expected_s: float | None = None
    speed: float = 1.0

    def begin(self, at: float) -> None:
        insort(self.running, at)

    def leave(self, began_at: float) -> None:
        """One that began then no longer runs."""
        place = bisect_left(self.running, began_at)
        if place < len(self.running) and self.running[place] == began_at:
            del self.running[place]

    def finish(self, work_s: float, speed: float = 1.0) -> None:
        self.speed = speed
        self.done.append(max(work_s, 1.0))
        if len(self.done) > 2 * RECENT:
            del self.done[:-RECENT]

    def distribution(self, now: float, limit_s: float, most: int = RECENT) -> tuple[Values, Values] | None:
        """Run times and their probabilities (which sum to one); ``None`` where nothing is known at all."""
        done = np.sort(np.array(self.done[-most:], dtype=float))
        spent = now - np.array(self.running[-4 * most :], dtype=float)[::-1]
        spent = spent[spent > 0.0]
        if not len(done) and not len(spent):
            return None
        weights, left = product_limit(done, spent)
        if left <= 1e-6:
            return done, weights
        beyond = float(done[-1]) if len(done) else 0.0
        if len(done) < FEW:
            tail, likely = outlook(done, spent, limit_s, beyond)
            return np.concatenate([done, tail]), np.concatenate([weights, left * likely])
        mean_s = float(done.sum() + spent.sum()) / len(done)
        tail = _exponential(beyond, mean_s, limit_s)
        return np.concatenate([done, tail]), np.concatenate([weights, np.full(STEPS, left / STEPS)])


def uniform(limit_s: float) -> Values:
    """Where nothing is known, any time below the limit is as likely as any other."""
    return np.maximum(_STEP * limit_s, 1.0)


def around(middle_s: float) -> Values:
    """Equally likely values around what somebody expects."""
    return np.maximum(middle_s * np.exp(_SPREAD * _STEP_OF_NORMAL), 0.1)


def smoothed(values: Values, weights: Values, done: Sequence[float]) -> tuple[Values, Values]:
    """The distribution with what so few runs cannot tell: the next one lies around the mean of these as far as they do
    from each other, and that is not known well (a Student's law of the logarithms, in steps)."""
    if len(done) >= _MANY:
        return values, weights
    logs = np.log(np.maximum(np.array(done[-_MANY:], dtype=float), 1e-3))
    inner = float(((logs - logs.mean()) ** 2).sum())
    spread = (_DOUBT * _SPREAD**2 + inner) / (_DOUBT + len(done))
    width = float(np.sqrt(max(spread * (1.0 + 1.0 / len(done)) - inner / len(done), 0.0)))
    return np.outer(values, np.exp(width * _NORMAL)).ravel(), np.repeat(weights / len(_NORMAL), len(_NORMAL))


def closest(values: Values, weights: Values) -> float:
    """The one of ``values`` that will be nearest to the truth by ratio: it maximises the mean of min(p, a) / max(p, a).

    For a uniform distribution up to a limit that is the limit times e to the power of -1/2.
    """
    order = np.argsort(values, kind="stable")
    x, w = values[order], weights[order]
    below = np.cumsum(w * x)
    above = np.cumsum((w / x)[::-1])[::-1]
    gain = below / x + x * np.append(above[1:], 0.0)
    return float(x[int(np.argmax(gain))])


def quantiles(values: Values, weights: Values, shares: tuple[float, ...]) -> tuple[float, ...]:
    """The smallest of ``values`` below which at least such a share of the probability lies."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    places = np.searchsorted(total, np.array(shares) * total[-1] - 1e-12)
    return tuple(float(values[order[min(int(place), len(order) - 1)]]) for place in places)


def product_limit(done: Values, spent: Values) -> tuple[Values, float]:
    """The probability of each of ``done``, and what is left for longer ones. Both are sorted."""
    if not len(done):
        return done, 1.0
    at_risk = np.arange(len(done), 0, -1) + (len(spent) - np.searchsorted(spent, done, side="left"))
    survive = np.cumprod(1.0 - 1.0 / at_risk)
    return np.append(1.0, survive[:-1]) / at_risk, float(survive[-1])


def _exponential(beyond_s: float, mean_s: float, limit_s: float) -> Values:
    """Values of ``beyond_s`` and an exponential time after it, none longer than the limit."""
    span_s = max(limit_s - beyond_s, 1.0)
    cut = 1.0 - float(np.exp(-min(span_s / mean_s, 50.0)))
    return np.maximum(beyond_s - mean_s * np.log1p(-_STEP * cut), 1.0)
