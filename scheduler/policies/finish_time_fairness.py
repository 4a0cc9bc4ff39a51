"""Finish-time fairness: the stage that will finish latest, relative to an equal part of the cluster, goes first."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.hooks import Rank
from scheduler.core.matching.fair import capacity
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import attained_device_s, predicted_left_s, width


@dataclass(frozen=True)
class FinishTimeFairness(Rank):
    """Rho of Themis (NSDI 2020): the time from submission to the end, if the stage began now, divided by the time that
    it would take with its part of the cluster from the start; the largest goes first.

    Its part is one of as many equal ones as there are waiting and running stages in the pool; with fewer devices than
    it asks for it is assumed to be slower in proportion.
    """

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        left_s = predicted_left_s(stage, world)
        had_s = attained_device_s(stage, world) / width(stage)
        shared_s = world.now - stage.submitted_at + left_s
        return shared_s / ((had_s + left_s) * self._slower(stage, world))

    def _slower(self, stage: Stage, world: ReadOnlyWorld) -> float:
        """Return how many times slower the stage would be with an equal part; at least 1."""
        asks = stage.alternatives[0].asks if stage.alternatives else ()
        kind = next((ask.kind for ask in asks if is_accelerator(ask.kind)), "cpu")
        rivals = len(world.waiting) + len(world.running)
        return max(1.0, width(stage) * max(rivals, 1) / max(capacity(world, stage.pool, kind), 1e-3))
