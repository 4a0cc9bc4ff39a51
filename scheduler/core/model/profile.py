"""A profile: which judgements a pool uses, with which weights, and how far ahead it plans. Data, not code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

from scheduler.core.hooks import Admit, Policy, Rank, Score, Victims, overrides

H = TypeVar("H", Rank, Admit, Score, Victims)


@dataclass(frozen=True)
class Profile:
    """The engine branches on these fields and never on ``name``.

    ``policies`` are pairs of a policy and its weight. ``timetable``: *none* makes no reservations; *keep* gives each
    stage a reservation once and keeps it; *repair* moves reservations when the cluster changes. ``plan_with`` is the
    quantile of durations that the timetable reserves. ``start_early`` lets a stage start before its reservation.

    ``depth`` is how many stages of a pool get a reservation, ``horizon_s`` how far ahead one may be, ``repair_depth``
    how many of the first reservations are checked in each cycle for an earlier time, and ``drift`` the share of the
    horizon's device time by which those may move before all others are checked too.

    ``rotates`` is the time-sharing mode of :mod:`scheduler.core.planning.time_sharing`: *none*; *event*, where running
    and waiting stages are ordered again at every event; or the length of a round in seconds, before whose end no stage
    that started in it is displaced. It requires the timetable *none*.
    """

    name: str
    policies: tuple[tuple[Policy, float], ...]
    timetable: Literal["none", "keep", "repair"] = "none"
    plan_with: Literal["p50", "p90"] = "p50"
    start_early: bool = True
    horizon_s: float = 86_400.0
    depth: int = 200
    repair_depth: int = 16
    drift: float = 0.05
    rotates: str | float = "none"

    def _weighed(self, hook: type[H], *methods: str) -> tuple[tuple[H, float], ...]:
        """The policies that answer by one of these methods of a hook, with their weights."""
        found = [(policy, weight) for policy, weight in self.policies if isinstance(policy, hook)]
        return tuple(one for one in found if any(overrides(one[0], hook, method) for method in methods))

    def _all(self, hook: type[H], method: str) -> tuple[H, ...]:
        return tuple(policy for policy, _ in self._weighed(hook, method))

    @cached_property
    def ranks(self) -> tuple[tuple[Rank, float], ...]:
        return self._weighed(Rank, "rank")

    @cached_property
    def levels(self) -> tuple[tuple[Rank, float], ...]:
        return self._weighed(Rank, "levels")

    @cached_property
    def guarantees(self) -> tuple[Rank, ...]:
        return self._all(Rank, "guarantees")

    @cached_property
    def allots(self) -> tuple[Rank, ...]:
        return self._all(Rank, "allot")

    @cached_property
    def turns(self) -> tuple[Rank, ...]:
        return self._all(Rank, "turns_at")

    @cached_property
    def admits(self) -> tuple[Admit, ...]:
        return self._all(Admit, "admit")

    @cached_property
    def fits(self) -> tuple[Admit, ...]:
        return self._all(Admit, "fits")

    @cached_property
    def groups(self) -> tuple[Admit, ...]:
        return self._all(Admit, "groups")

    @cached_property
    def scores(self) -> tuple[tuple[Score, float], ...]:
        return self._weighed(Score, "score", "scores")

    @cached_property
    def prefers(self) -> tuple[tuple[Score, float], ...]:
        return self._weighed(Score, "prefer")

    @cached_property
    def chooses(self) -> tuple[Score, ...]:
        return self._all(Score, "choose")

    @cached_property
    def protects(self) -> tuple[Victims, ...]:
        return self._all(Victims, "protects")

    @cached_property
    def resizes(self) -> tuple[Victims, ...]:
        return self._all(Victims, "stakes")

    @cached_property
    def evacuates(self) -> tuple[Victims, ...]:
        return self._all(Victims, "evacuates")

    @cached_property
    def evicts(self) -> tuple[Victims, ...]:
        """The least disruptive first: elastic stages shrink before lent quota is reclaimed, and that comes before
        preemption."""
        found = [policy for policy in self._all(Victims, "victims") if policy not in self.overtakes]
        return tuple(sorted(found, key=lambda one: (not overrides(one, Victims, "stakes"), not one.by_project)))

    @cached_property
    def overtakes(self) -> tuple[Victims, ...]:
        return self._all(Victims, "overtakers")

    @cached_property
    def reclaims(self) -> bool:
        """Whether some policy reclaims lent quota, so that the project of a stage matters."""
        return any(one.by_project for one in self.evicts)
