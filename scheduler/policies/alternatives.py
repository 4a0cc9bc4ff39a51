"""Alternatives: of several ways to run, the one that will be done first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.matching import load
from scheduler.core.model.types import Stage
from scheduler.core.resources.speed import worth
from scheduler.core.world.view import Option, View


@dataclass(frozen=True)
class Alternatives:
    """Predicted finish decides: the wait for a device and the run on it; a fast device may be worth waiting for. On
    a node that has more to do than it can it takes as many times longer.

    Ways that end within ``near`` of each other count as equal (the share is of the time until the earliest end); among
    those the cheapest devices are taken, and of such that are free now the place that the other policies like best.
    """

    near: float = 0.02

    def choose(self, stage: Stage, options: Sequence[Option], view: View) -> Option:
        ends = [_end_at(option, view) for option in options]
        earliest = min(ends)
        limit = earliest + self.near * (earliest - view.now)
        equal = [(option, end) for option, end in zip(options, ends, strict=True) if end <= limit]
        return min(equal, key=lambda one: (self._cost(one[0], view), *_preference(one[0], one[1], view)))[0]

    def _cost(self, option: Option, view: View) -> float:
        return sum(worth(view.ledger.devices[one.device], one.milli) for one in option.grants)


def _preference(option: Option, end_at: float, view: View) -> tuple[float, ...]:
    is_later = option.start_at > view.now
    return is_later, 0.0 if is_later else -option.score, end_at, option.feasible.alternative.index


def _end_at(option: Option, view: View) -> float:
    return option.start_at + (option.end_at - option.start_at) * load.slowdown(option.placement, view)
