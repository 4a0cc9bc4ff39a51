"""Foreground: new stages go first; of the others, the one with the most service is finished first."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import attained_device_s, width

# More device-seconds than anything receives; the distance between classes in the order.
_MOST: float = 1e12


@dataclass(frozen=True)
class Foreground(Rank):
    """Queues by attained service (devices times seconds), without alternating inside a queue: running stages come
    first, the one with most service before others. Run times are neither known nor predicted.

    Least attained service is right if most work is short and some is very long; among long stages it stops one for
    another that takes as long, and all end late. Here a stage that has crossed the last of the ``thresholds`` is
    finished before another of that queue begins, while any new stage still goes first.
    """

    thresholds: tuple[float, ...] = (68_000.0,)

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        attained = attained_device_s(stage, world)
        place = 2 * bisect_right(self.thresholds, attained) + (stage.id not in world.running)
        return min(attained, _MOST) - place * 2 * _MOST

    def turns_at(self, stage: Stage, world: ReadOnlyWorld) -> float | None:
        """Return when it reaches the next threshold."""
        attained = attained_device_s(stage, world)
        queue = bisect_right(self.thresholds, attained)
        if queue == len(self.thresholds):
            return None
        # A moment later the threshold has surely been reached.
        return world.now + (self.thresholds[queue] - attained) / width(stage) + 0.01
