"""Alternatives: of several alternatives of a stage, chooses the one with the earliest predicted finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.hooks import Score
from scheduler.core.matching import load
from scheduler.core.model.types import Stage
from scheduler.core.resources.speed import worth
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.reservation import Option


@dataclass(frozen=True)
class Alternatives(Score):
    """Compares predicted finish times, the wait for a device included; a fast device may be worth waiting for. On an
    overloaded node the run time is multiplied by the overload.

    Alternatives that end within ``near`` of each other count as equal (a share of the time until the earliest end).
    Among those the cheapest devices are taken, and of placements that are free now the one with the best score of the
    other policies.
    """

    near: float = 0.02

    def choose(self, stage: Stage, options: Sequence[Option], world: ReadOnlyWorld) -> Option:
        ends = [_end_at(option, world) for option in options]
        earliest = min(ends)
        limit = earliest + self.near * (earliest - world.now)
        equal = [(option, end) for option, end in zip(options, ends, strict=True) if end <= limit]
        return min(equal, key=lambda one: (self._cost(one[0], world), *_preference(one[0], one[1], world)))[0]

    def _cost(self, option: Option, world: ReadOnlyWorld) -> float:
        return sum(worth(world.ledger.devices[one.device], one.milli) for one in option.grants)


def _preference(option: Option, end_at: float, world: ReadOnlyWorld) -> tuple[float, ...]:
    is_later = option.start_at > world.now
    return is_later, 0.0 if is_later else -option.score, end_at, option.feasible.alternative.index


def _end_at(option: Option, world: ReadOnlyWorld) -> float:
    return option.start_at + (option.end_at - option.start_at) * load.slowdown(option.placement, world)
