"""Attained service: the stage with the least service so far goes first, without knowing run times."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from scheduler.core.hooks import Rank
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import attained_device_s, since_counted_s, width

# Longer than anything waits or runs; the distance between parts of one queue in the order.
_SPAN_S = 1e9
# Queues change on whole seconds: a stage counts as new in its queue during the first one.
_WHOLE_S = 1.0


@dataclass(frozen=True)
class AttainedService(Rank):
    """Least attained service in two dimensions, devices times seconds, in queues (Tiresias, NSDI 2019).

    A stage begins in the first queue and moves to the end of the next, also while it runs, when its service reaches the
    next of the ``thresholds`` (device-seconds). Within a queue running stages come before waiting ones, the longest
    there first; then those that were stopped there, the last one first; then those that have not run in the queue yet,
    in the order of arrival.
    """

    thresholds: tuple[float, ...] = (3_250.0, 7_200.0)

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        attained = attained_device_s(stage, world)
        queue = bisect_right(self.thresholds, attained)
        here_s = (attained - self.thresholds[queue - 1]) / width(stage) if queue else math.inf
        running = world.running.get(stage.id)
        if running is not None and here_s >= _WHOLE_S:
            place = _SPAN_S - min(world.now - running.started_at, here_s, _SPAN_S)
        elif stage.stopped_at is not None and running is None and here_s >= _WHOLE_S:
            place = 2 * _SPAN_S + min(world.now - stage.stopped_at, _SPAN_S)
        else:
            came_at = world.now if running is not None else stage.submitted_at
            if running is None and stage.stopped_at is not None:
                came_at = stage.stopped_at
            place = 4 * _SPAN_S - min(world.now - came_at, _SPAN_S)
        return -(10 * _SPAN_S * queue + place)

    def turns_at(self, stage: Stage, world: ReadOnlyWorld) -> float | None:
        """Return when it reaches the next threshold, in whole seconds from the last count, so that it surely has."""
        left = [one - stage.attained_device_s for one in self.thresholds if one > attained_device_s(stage, world)]
        if not left:
            return None
        return world.now - since_counted_s(stage, world) + math.ceil(left[0] / width(stage))
