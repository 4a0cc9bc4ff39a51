"""Priority: urgent work first, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.line import Column, Line
from scheduler.core.types import Stage
from scheduler.core.view import View


@dataclass(frozen=True)
class Priority:
    """The number of the stage's class, and one class step more for each ``step_s`` that it has waited.

    Waiting never lifts a stage to ``cap``, the class *urgent*; a stage that starts above it stays where it is.
    """

    step: float = 250.0
    step_s: float = 86_400.0
    cap: float = 1000.0

    def order(self, stage: Stage, view: View) -> float:
        waited_s = max(0.0, view.now - stage.eligible_at)
        return max(float(stage.priority), min(stage.priority + self.step * waited_s / self.step_s, self.cap - 1.0))

    def orders(self, line: Line, view: View) -> Column:
        aged = line.priority + self.step * np.maximum(view.now - line.eligible_at, 0.0) / self.step_s
        return np.maximum(line.priority, np.minimum(aged, self.cap - 1.0))
