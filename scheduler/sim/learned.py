"""A world with unknown run times: the estimate of a stage is learned from those before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler.core.model.types import Alternative, Estimate, Stage
from scheduler.predict.durations import Durations, Prediction
from scheduler.predict.finished import Asked, Finished
from scheduler.predict.lateness import Lateness
from scheduler.predict.starts import Starts
from scheduler.sim.world import SimulatedWorld


class LearningWorld(SimulatedWorld):
    """Predicts each stage when it arrives, from completed stages and from how long others run already.

    ``as_planned`` turns a prediction into the estimate that the engine plans with. Waiting stages are predicted again
    at most every ``renew_s`` seconds, if similar ones completed meanwhile; infinite means never.
    """

    def __init__(
        self,
        *args: Any,
        as_planned: Callable[[Prediction], Estimate] = lambda said: said.estimate,
        renew_s: float = math.inf,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.durations = Durations()
        self.store.lateness = Lateness()
        self.store.starts = Starts()
        self.said: dict[str, Prediction] = {}
        self._as_planned, self._renew_s = as_planned, renew_s
        self._renewed_at = self._all_renewed_at = 0.0
        # Waiting stages by what they ask for, and the families of stages that completed since the last renewal.
        self._waits: dict[Asked, dict[str, None]] = {}
        self._news: set[tuple[str, str]] = set()
        self._trace = {one.id: one for one in self._arrivals}

    def _arrive(self, stage: Stage) -> None:
        asked = self._asked(stage)
        said = self.said[stage.id] = self.durations.submit(stage.id, asked, self.now)
        super()._arrive(replace(stage, estimate=self._as_planned(said)))
        if self._renew_s < math.inf:
            self._waits.setdefault(asked, {})[stage.id] = None

    def _cycle(self) -> None:
        if self._news and self.now - self._renewed_at >= self._renew_s:
            self._renew()
        super()._cycle()

    def _renew(self) -> None:
        """Predict waiting stages again if similar ones completed; all of them once an hour, because running ones are
        evidence too."""
        hourly = self.now - self._all_renewed_at >= 3_600.0
        if hourly:
            self._all_renewed_at = self.now
        for asked, names in self._waits.items():
            if names and (hourly or (asked.project, asked.user) in self._news):
                estimate = self._as_planned(self.durations.predict(asked, self.now))
                for name in names:
                    self.store.foresee(name, estimate)
        self._news.clear()
        self._renewed_at = self.now

    def _begin(self, name: str) -> None:
        super()._begin(name)
        if self._waits:
            self._waits.get(self._asked(self.store.entries[name].stage), {}).pop(name, None)
        self.durations.begin(name, self.now)

    def _complete(self, name: str, epoch: int) -> None:
        entry = self.store.entries[name]
        if entry.epoch == epoch and entry.running is not None:
            stage, speed = entry.stage, self._rate(entry.running)
            # All its attempts together: the work of earlier ones belongs to the run time of such a stage.
            ran_s = self._true_s[name] / speed
            asked = self._asked(stage)
            self._news.add((asked.project, asked.user))
            self.durations.learn(
                Finished(asked.project, asked.name, asked.kind, ran_s, speed=speed, ended_at=self.now, id=name)
            )
        super()._complete(name, epoch)

    def _asked(self, stage: Stage) -> Asked:
        one = self._trace[stage.id]
        return Asked(
            project=one.project,
            name=one.name,
            kind=one.kind,
            user=one.user,
            resources=f"{stage.nodes} {_text(stage.alternatives)}",
            # If only one time is given, it is the limit.
            limit_s=one.limit_s if one.limit_s is not None else one.expected_s,
            expected_s=one.expected_s if one.limit_s is not None else None,
        )


def _text(alternatives: tuple[Alternative, ...]) -> str:
    return "|".join(
        " ".join(f"{ask.kind} {ask.count} {ask.milli}" for ask in alternative.asks) for alternative in alternatives
    )
