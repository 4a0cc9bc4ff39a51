"""Firm: a promise that is about to fall due is not given away for a little more fairness."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.line import Column, Line
from scheduler.core.types import Stage
from scheduler.core.view import View


@dataclass(frozen=True)
class Firm:
    """One for a stage that was promised to start within ``within_s`` from now, else nothing.

    With the weight of fair share in the profile, no newcomer of the same class takes its place; a higher class may.
    """

    within_s: float = 3600.0

    def order(self, stage: Stage, view: View) -> float:
        return float(stage.promise is not None and stage.promise.start_at <= view.now + self.within_s)

    def orders(self, line: Line, view: View) -> Column:
        return (line.promised_at <= view.now + self.within_s).astype(float)
