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

    ``rotates`` is the time-sharing mode of :mod:`scheduler.core.planning.time_sharing`: *none*; *event*, where running
    and waiting stages are lined up anew whenever something happens; or the length of a round in seconds, before whose
    end nobody who began in it is displaced. It goes with the timetable *none*.
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
    rotates: str | float = "none"

    def _with(self, ability: str) -> tuple[tuple[Any, float], ...]:
        return tuple((policy, weight) for policy, weight in self.policies if hasattr(policy, ability))

    @cached_property
    def orders(self) -> tuple[tuple[Any, float], ...]:
        return self._with("order")

    @cached_property
    def levels(self) -> tuple[tuple[Any, float], ...]:
        return self._with("levels")

    @cached_property
    def guarantees(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("guarantees"))

    @cached_property
    def scores(self) -> tuple[tuple[Any, float], ...]:
        return tuple(one for one in self.policies if hasattr(one[0], "score") or hasattr(one[0], "scores"))

    @cached_property
    def prefers(self) -> tuple[tuple[Any, float], ...]:
        return self._with("prefer")

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
    def protects(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("protects"))

    @cached_property
    def allots(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("allot"))

    @cached_property
    def turns(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("turns_at"))

    @cached_property
    def resizes(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("stakes"))

    @cached_property
    def evacuates(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("leaves"))

    @cached_property
    def evicts(self) -> tuple[Any, ...]:
        """The gentlest first: who can shrink gives back before what was lent is taken back, and that before anybody is
        stopped for another's sake."""
        found = [policy for policy, _ in self._with("victims") if policy not in self.overtakes]
        return tuple(sorted(found, key=lambda one: (not hasattr(one, "stakes"), not getattr(one, "by_project", False))))

    @cached_property
    def overtakes(self) -> tuple[Any, ...]:
        return tuple(policy for policy, _ in self._with("overtakers"))

    @cached_property
    def reclaims(self) -> bool:
        """Whether some policy takes back what was lent, so that it matters whose a stage is."""
        return any(getattr(policy, "by_project", False) for policy in self.evicts)
