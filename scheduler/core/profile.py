"""A profile: which judgements a pool uses, with which weights, and how far ahead it plans. Data, not code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal


@dataclass(frozen=True)
class Profile:
    """The engine branches on these fields and never on ``name``.

    ``policies`` are pairs of a policy and its weight. ``timetable``: *none* promises nothing; *keep* gives each stage a
    start and devices once and holds on to them; *repair* moves entries when the world moves. ``plan_with`` is the
    quantile of durations that the timetable reserves. ``start_early`` lets a stage start before its entry.

    ``depth`` is how many stages of a pool get an entry, ``horizon_s`` how far ahead one may lie, ``repair_depth`` how
    many of the first entries are looked at in each cycle for an earlier time, and ``drift`` the share of the horizon's
    device time by which those may move before all the others are looked at too.
    """

    name: str
    policies: tuple[tuple[Any, float], ...]
    timetable: Literal["none", "keep", "repair"] = "none"
    plan_with: Literal["p50", "p90"] = "p50"
    start_early: bool = True
    horizon_s: float = 86_400.0
    depth: int = 200
    repair_depth: int = 16
    drift: float = 0.05

    def _with(self, ability: str) -> tuple[tuple[Any, float], ...]:
        return tuple((policy, weight) for policy, weight in self.policies if hasattr(policy, ability))

    @cached_property
    def orders(self) -> tuple[tuple[Any, float], ...]:
        return self._with("order")

    @cached_property
    def scores(self) -> tuple[tuple[Any, float], ...]:
        return self._with("score")

    @cached_property
    def admits(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("admit"))

    @cached_property
    def fits(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("fits"))

    @cached_property
    def groups(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("groups"))

    @cached_property
    def chooses(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("choose"))

    @cached_property
    def evicts(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("victims"))
