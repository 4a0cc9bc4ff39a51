"""Chooses the number of devices of elastic stages: grow onto idle ones, shrink before others wait or are stopped.

Water-filling by marginal gain: the next devices go where they raise the weighted rate of progress most for each of
them. A stage's curve gives its rate at each size; a stage with little remaining work has a high weight, so that it ends
soon and frees its devices (for concave curves that is the shape of the optimal policy, heSRPT, Berg et al. 2020; the
goodput curves are those of Pollux, OSDI 2021). A resize stops the stage for a while, so it is made only if its gain
until the stage ends, or within the horizon, exceeds that cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler.core.model.types import SCALING, Estimate

# A stage with unknown remaining work is assumed to have as much left as done, and at least this.
_UNKNOWN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """The rate of progress at each size that a stage may have, relative to that of size 1 or to any other constant.

    ``rates`` maps numbers of devices to rates, all positive. Sizes that are not named cannot be had.
    """

    rates: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.rates or any(size < 1 or not rate > 0 for size, rate in self.rates.items()):
            raise ValueError("a scaling curve needs a positive rate for at least one size of at least 1 device")

    def steps(self, most: int | None = None) -> list[tuple[int, float]]:
        """The sizes on the upper hull up to ``most`` (at least the smallest): each further step gains less for
        each device than the one before it, and every step gains something."""
        least = min(self.rates)
        hull: list[tuple[int, float]] = [(0, 0.0)]
        for size, rate in sorted(self.rates.items()):
            if most is not None and size > max(most, least):
                break
            while len(hull) > 1 and _slope(hull[-2], (size, rate)) >= _slope(hull[-2], hull[-1]):
                hull.pop()
            if rate > hull[-1][1]:
                hull.append((size, rate))
        return hull[1:]


@dataclass(frozen=True, slots=True)
class Elastic:
    """A stage that may be resized. ``size`` is what it holds now, 0 while it waits.

    ``left_s`` is the predicted time to its end at a rate of 1, ``done_s`` the time already done in the same unit;
    ``since_s`` how long it has had its size; ``restart_s`` how long a resize stops it. ``explored`` bounds the size if
    its curve is known only up to there.
    """

    id: str
    curve: ScalingCurve
    size: int = 0
    weight: float = 1.0
    left_s: float | None = None
    done_s: float = 0.0
    since_s: float = float("inf")
    restart_s: float = 30.0
    explored: int | None = None


@dataclass(frozen=True)
class Sizing:
    """The parameters of the choice.

    ``urgency`` is the power of the remaining time by which weights fall: 0 allocates by speed alone, 1 serves stages
    first that will soon be done. No stage is resized within ``settle_s`` of the last time, nor for a gain of rate below
    ``worthwhile`` of the stage's own, nor if the stop costs more than the gain brings within ``horizon_s``.
    """

    urgency: float = 1.0
    settle_s: float = 120.0
    worthwhile: float = 0.1
    horizon_s: float = 3600.0


def faster(least: int, size: int, scaling: float = SCALING) -> float:
    """How many times as fast a stage is taken to run on ``size`` nodes as on ``least``."""
    return float((size / least) ** scaling)


def hastened(estimate: Estimate, least: int, size: int, scaling: float = SCALING) -> Estimate:
    """An estimate for ``least`` nodes as it holds for ``size``."""
    if size == least:
        return estimate
    rate = faster(least, size, scaling)
    return replace(estimate, p50_s=estimate.p50_s / rate, p90_s=estimate.p90_s / rate)


def allot(stages: Sequence[Elastic], devices: int, sizing: Sizing | None = None) -> dict[str, int]:
    """The size of each stage, 0 for one that must wait; together at most ``devices``. Pure and deterministic.

    Whoever keeps nothing is stopped only for one that gains more from its devices: the walk starts from nothing and
    gives each next step to whom it is worth most, ties in the order of ids.
    """
    sizing = sizing or Sizing()
    wanted = _pour(stages, devices, sizing, {})
    # A change that is not worth a stop is not made; the others share the rest.
    kept: dict[str, int] = {}
    for stage in sorted(stages, key=lambda one: one.id):
        if stage.size and wanted[stage.id] != stage.size and not _is_worth(stage, wanted[stage.id], sizing):
            kept[stage.id] = stage.size
    if sum(kept.values()) > devices:  # devices were lost: every size may change
        kept = {}
    return {**_pour([one for one in stages if one.id not in kept], devices - sum(kept.values()), sizing, kept), **kept}


def weight(stage: Elastic, sizing: Sizing) -> float:
    """What one unit of the stage's rate is worth."""
    left_s = stage.left_s if stage.left_s is not None else max(stage.done_s, _UNKNOWN_S)
    return stage.weight / float(max(left_s, 1.0) ** sizing.urgency)


def _pour(stages: Sequence[Elastic], devices: int, sizing: Sizing, kept: Mapping[str, int]) -> dict[str, int]:
    sizes = dict.fromkeys((one.id for one in stages), 0)
    heap: list[tuple[float, str, int]] = []
    steps: dict[str, list[tuple[int, float]]] = {}
    worth: dict[str, float] = {}
    for stage in stages:
        steps[stage.id] = [(0, 0.0), *stage.curve.steps(stage.explored)]
        worth[stage.id] = weight(stage, sizing)
        _offer(heap, stage.id, 0, steps[stage.id], worth[stage.id])
    free = devices
    while heap and free > 0:
        _, name, at = heapq.heappop(heap)
        more = steps[name][at + 1][0] - steps[name][at][0]
        if more > free:
            continue  # a smaller step of another may still fit
        free -= more
        sizes[name] = steps[name][at + 1][0]
        _offer(heap, name, at + 1, steps[name], worth[name])
    return sizes


def _offer(
    heap: list[tuple[float, str, int]], name: str, at: int, steps: list[tuple[int, float]], worth: float
) -> None:
    if at + 1 < len(steps):
        heapq.heappush(heap, (-round(worth * _slope(steps[at], steps[at + 1]), 12), name, at))


def _is_worth(stage: Elastic, size: int, sizing: Sizing) -> bool:
    """Whether a running stage should be stopped for another size. To go without is decided by those who gain by it."""
    if stage.since_s < sizing.settle_s:
        return False
    if size == 0 or size not in stage.curve.rates or stage.size not in stage.curve.rates:
        return True
    old, new = stage.curve.rates[stage.size], stage.curve.rates[size]
    if size < stage.size:
        return True  # another stage gains more from these devices than it loses
    left_s = (stage.left_s if stage.left_s is not None else max(stage.done_s, _UNKNOWN_S)) / old
    span_s = min(left_s, sizing.horizon_s)
    return new >= old * (1.0 + sizing.worthwhile) and (new - old) * span_s > new * stage.restart_s


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])
