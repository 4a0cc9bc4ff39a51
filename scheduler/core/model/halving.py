"""Decides which points of a sweep are stopped early: asynchronous successive halving (ASHA), its stopping variant.

Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020. Nothing waits for others: a point is
judged once at each rung that it reaches, against those that reached the rung before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Beyond this a whole number is not exact in JSON, and no training loop counts so far.
MOST_STEPS: Final = 2**53


class Goal(StrEnum):
    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


@dataclass(frozen=True, slots=True)
class RungVerdict:
    """Whether a point goes on from a rung where it is one of ``among`` that reached it.

    ``cutoff`` is the value that was needed: None while too few have reached the rung to compare, or if any number would
    have been good enough.
    """

    goes_on: bool
    among: int
    cutoff: float | None = None


@dataclass(frozen=True, slots=True)
class Halving:
    """The rule of a sweep: at step ``min_steps``, and then at ``reduction_factor`` times as many, up to ``rungs``
    times, the best 1/``reduction_factor`` by ``metric`` go on and the others are stopped."""

    metric: str
    goal: Goal
    min_steps: int
    reduction_factor: int
    rungs: int

    def steps(self) -> list[int]:
        """Return the step of each rung, ascending."""
        return [self.min_steps * self.reduction_factor**at for at in range(self.rungs)]

    def rung_at(self, step: int) -> int:
        """Return the highest rung, from 1, that is reached at a step; 0 before the first."""
        return sum(step >= least for least in self.steps())

    def judge(self, value: float | None, earlier: Sequence[float | None]) -> RungVerdict:
        """Judge a point by its value at a rung and those of the points that reached the rung before it.

        None is a value that is no finite number, as of a training that diverged: it is worse than all numbers. As long
        as fewer points than ``reduction_factor`` have reached the rung all go on; of equal values all do.
        """
        among = len(earlier) + 1
        if among < self.reduction_factor:
            return RungVerdict(True, among)
        sign = 1.0 if self.goal is Goal.MINIMIZE else -1.0
        numbers = sorted(sign * each for each in (value, *earlier) if each is not None)
        best = among // self.reduction_factor
        cutoff = sign * numbers[best - 1] if len(numbers) >= best else None
        goes_on = value is not None and bisect_left(numbers, sign * value) < best
        return RungVerdict(goes_on, among, cutoff)
