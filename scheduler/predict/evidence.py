"""The run-time distribution of a family of stages, from finished runs and from those that are still running.

A running stage is evidence too: it takes longer than it has so far. Kaplan and Meier's product-limit estimate (1958)
uses both kinds; without it the first to finish of a burst, which are its short ones, would stand for all. If running
stages have exceeded all finished ones, the rest of the distribution is exponential with the rate of the total time so
far, cut off at the limit; while little has finished, a prior of families is used (:mod:`scheduler.predict.outlook`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np

from scheduler.predict.outlook import Values, outlook

# Only the newest count, because code changes.
RECENT: Final = 500
# A distribution without samples is represented by so many equally likely values.
STEPS: Final = 24
_STEP: Final = (np.arange(STEPS) + 0.5) / STEPS
# The assumed spread of a family's run times (of their logarithm) has the weight of so many runs; with this many runs
# only these count.
_SPREAD: Final = 0.3
_DOUBT: Final = 2.0
_MANY: Final = 50
# Five steps of a normal distribution, of variance one.
_NORMAL: Final = np.array([-1.4628, -0.5984, 0.0, 0.5984, 1.4628])
# With fewer finished stages the prior is used.
FEW: Final = 200


_STEP_OF_NORMAL: Final = np.array([NormalDist().inv_cdf(float(step)) for step in _STEP])


@dataclass(slots=True)
class Family:
    """A family of similar stages. ``done`` are their run times in the order of their ends, ``running`` the starts of
    those that run, in order of time; ``expected_s`` is the declared time, and ``speed`` that of the device of the
    newest run."""

    done: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    expected_s: float | None = None
    speed: float = 1.0

    def begin(self, at: float) -> None:
        insort(self.running, at)

    def leave(self, began_at: float) -> None:
        """Remove a running stage with this start."""
        place = bisect_left(self.running, began_at)
        if place < len(self.running) and self.running[place] == began_at:
            del self.running[place]

    def finish(self, work_s: float, speed: float = 1.0) -> None:
        self.speed = speed
        self.done.append(max(work_s, 1.0))
        if len(self.done) > 2 * RECENT:
            del self.done[:-RECENT]

    def distribution(self, now: float, limit_s: float, most: int = RECENT) -> tuple[Values, Values] | None:
        """Return run times and their probabilities (which sum to one); ``None`` without any evidence."""
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
    """Return equally likely values up to the limit, for stages without evidence."""
    return np.maximum(_STEP * limit_s, 1.0)


def around(middle_s: float) -> Values:
    """Return equally likely values around an expected time."""
    return np.maximum(middle_s * np.exp(_SPREAD * _STEP_OF_NORMAL), 0.1)


def smoothed(values: Values, weights: Values, done: Sequence[float]) -> tuple[Values, Values]:
    """Return the distribution widened by the uncertainty of so few runs: the next run lies around their mean as far as
    they lie from each other, and that spread is not known well (a Student's distribution of the logarithms, in
    steps)."""
    if len(done) >= _MANY:
        return values, weights
    logs = np.log(np.maximum(np.array(done[-_MANY:], dtype=float), 1e-3))
    inner = float(((logs - logs.mean()) ** 2).sum())
    spread = (_DOUBT * _SPREAD**2 + inner) / (_DOUBT + len(done))
    width = float(np.sqrt(max(spread * (1.0 + 1.0 / len(done)) - inner / len(done), 0.0)))
    return np.outer(values, np.exp(width * _NORMAL)).ravel(), np.repeat(weights / len(_NORMAL), len(_NORMAL))


def closest(values: Values, weights: Values) -> float:
    """Return the one of ``values`` nearest to the truth by ratio: it maximises the mean of min(p, a) / max(p, a).

    For a uniform distribution up to a limit that is the limit times e to the power of -1/2.
    """
    order = np.argsort(values, kind="stable")
    x, w = values[order], weights[order]
    below = np.cumsum(w * x)
    above = np.cumsum((w / x)[::-1])[::-1]
    gain = below / x + x * np.append(above[1:], 0.0)
    return float(x[int(np.argmax(gain))])


def quantiles(values: Values, weights: Values, shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return the smallest of ``values`` at or below which at least such a share of the probability lies."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    places = np.searchsorted(total, np.array(shares) * total[-1] - 1e-12)
    return tuple(float(values[order[min(int(place), len(order) - 1)]]) for place in places)


def product_limit(done: Values, spent: Values) -> tuple[Values, float]:
    """Return the probability of each of ``done``, and the rest for longer ones. Both arguments are sorted."""
    if not len(done):
        return done, 1.0
    at_risk = np.arange(len(done), 0, -1) + (len(spent) - np.searchsorted(spent, done, side="left"))
    survive = np.cumprod(1.0 - 1.0 / at_risk)
    return np.append(1.0, survive[:-1]) / at_risk, float(survive[-1])


def _exponential(beyond_s: float, mean_s: float, limit_s: float) -> Values:
    """Return values of ``beyond_s`` plus an exponential time, none longer than the limit."""
    span_s = max(limit_s - beyond_s, 1.0)
    cut = 1.0 - float(np.exp(-min(span_s / mean_s, 50.0)))
    return np.maximum(beyond_s - mean_s * np.log1p(-_STEP * cut), 1.0)
