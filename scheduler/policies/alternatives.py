"""Alternatives: of several ways to run, the one that will be done first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.speed import worth
from scheduler.core.types import Stage
from scheduler.core.view import Option, View


@dataclass(frozen=True)
class Alternatives:
    """Predicted finish decides: the wait for a device and the run on it; a fast device may be worth waiting for.

    Ways that end within ``near`` of each other count as equal (the share is of the time until the earliest end); among
    those the cheapest devices are taken.
    """

    near: float = 0.02

    def choose(self, stage: Stage, options: Sequence[Option], view: View) -> Option:
        earliest = min(option.end_at for option in options)
        limit = earliest + self.near * (earliest - view.now)
        equal = [option for option in options if option.end_at <= limit]
        return min(equal, key=lambda option: (self._cost(option, view), option.end_at, option.way.alternative.index))

    def _cost(self, option: Option, view: View) -> float:
        return sum(worth(view.ledger.devices[one.device], one.milli) for one in option.grants)
