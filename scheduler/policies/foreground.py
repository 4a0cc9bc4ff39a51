"""Foreground: what is new goes first; of what is not, that is brought to its end which is furthest."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import attained_device_s, width

# More device-seconds than anything receives; classes lie this far apart in the order.
_MOST: float = 1e12


@dataclass(frozen=True)
class Foreground(Rank):
    """Queues by attained service (devices times seconds), without taking turns inside a queue: those that run come
    first, and the furthest of them. Nothing is known or guessed about lengths.

    Least attained service is right where most work is short and some is very long; among what is long already it stops
    one for another that takes as long, and all end late. Here whoever has crossed the last of the ``thresholds`` is
    finished before another of that queue begins, while anything new still goes first.
    """

    thresholds: tuple[float, ...] = (68_000.0,)

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        attained = attained_device_s(stage, world)
        place = 2 * bisect_right(self.thresholds, attained) + (stage.id not in world.running)
        return min(attained, _MOST) - place * 2 * _MOST

    def turns_at(self, stage: Stage, world: ReadOnlyWorld) -> float | None:
        """When it reaches the next threshold."""
        attained = attained_device_s(stage, world)
        queue = bisect_right(self.thresholds, attained)
        if queue == len(self.thresholds):
            return None
        # A moment later it has surely been reached.
        return world.now + (self.thresholds[queue] - attained) / width(stage) + 0.01
