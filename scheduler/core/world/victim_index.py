"""Running stages as arrays: the cost of stopping each, and what that would free."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scheduler.core.model.kinds import is_accelerator, is_device
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Grant, Running
from scheduler.core.resources.fleet import Fleet, Rates
from scheduler.core.world import price
from scheduler.core.world.pending import Column
from scheduler.core.world.service import middle_left_s

_START = 64
# Non-zero values of a spare slot.
_SPARE = {"node": -1, "p50_s": 1, "p90_s": 1, "rate": 1, "stages": None}
STOPPABLE = frozenset({State.STARTING, State.RUNNING, State.SUSPENDED})


class VictimIndex:
    """Running stages that could be stopped, with a slot for each node that one holds.

    Columns: ``node`` (row; -1 for a spare slot), ``priority``, ``weight`` (devices times importance), ``saved_at``
    (work since then would be lost; infinite if none would be), ``again_s`` (duration of a restart), ``safe_until`` (the
    end of a minimum run time that ``began`` with the stage; -inf without one), ``preemptions`` and ``waited_s`` (how
    long it waited before it started); ``gives`` are the milli of accelerators that it would release on that node, or of
    cores if it has none, ``project`` is the code of its project. ``p50_s`` and ``p90_s`` are its estimate, ``ran_s``
    how long it ran before this attempt, all on a device of speed 1, and ``rate`` is its speed; ``is_spared`` tells that
    no stage of its own class stops it: it has a deadline, or it shrinks instead.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.stages: Column = np.empty(_START, dtype=object)
        self.node: Column = np.full(_START, -1, dtype=np.int64)
        self.priority: Column = np.zeros(_START)
        self.weight: Column = np.zeros(_START)
        self.saved_at: Column = np.zeros(_START)
        self.again_s: Column = np.zeros(_START)
        self.began: Column = np.zeros(_START)
        self.safe_until: Column = np.zeros(_START)
        self.preemptions: Column = np.zeros(_START)
        self.gives: Column = np.zeros(_START)
        self.waited_s: Column = np.zeros(_START)
        self.p50_s: Column = np.ones(_START)
        self.p90_s: Column = np.ones(_START)
        self.ran_s: Column = np.zeros(_START)
        self.rate: Column = np.ones(_START)
        self.is_spared: Column = np.zeros(_START, dtype=np.bool_)
        self.project: Column = np.zeros(_START, dtype=np.int64)
        # What is left of each, and as of when; of what was entered since nothing.
        self._left: tuple[float, Column] | None = None
        # The projects of those who are or were here, each with its code.
        self.projects: dict[str, int] = {}
        self._slots: dict[str, list[int]] = {}
        self._spare: list[int] = list(range(_START - 1, -1, -1))

    def enter(self, stages: Iterable[Running], rates: Iterable[float]) -> None:
        """Count those of the stages that may be stopped at all; ``rates`` is how fast each runs."""
        found: list[tuple[int, Running, int, float, int, float]] = []
        for stage, rate in zip(stages, rates, strict=True):
            if not stage.preemptible or stage.state not in STOPPABLE or stage.evicted_for is not None:
                continue
            weight = price.weight(stage.priority) * price.width(stage)
            slots = self._slots[stage.id] = []
            for node, grants in zip(stage.placement.nodes, stage.placement.grants, strict=True):
                row = self._fleet.node_row.get(node)
                if row is None:
                    continue
                if not self._spare:
                    self._grow()
                at = self._spare.pop()
                slots.append(at)
                found.append((at, stage, row, weight, self._special(grants), rate))
        if found:
            self._write(found)

    def _write(self, found: list[tuple[int, Running, int, float, int, float]]) -> None:
        slots, stages, rows, weights, gives, rates = zip(*found, strict=True)
        at, stakes = list(slots), [price.at_stake(stage) for stage in stages]
        for slot, stage in zip(slots, stages, strict=True):
            self.stages[slot] = stage
        self._left = None
        self.node[at], self.weight[at], self.gives[at], self.rate[at] = rows, weights, gives, rates
        ran_s = np.array([self._ran_s(stage) for stage in stages])
        self.ran_s[at] = ran_s
        self.p50_s[at] = ran_s + [stage.estimate.p50_s for stage in stages]
        self.p90_s[at] = ran_s + [stage.estimate.p90_s for stage in stages]
        self.priority[at] = [stage.priority for stage in stages]
        self.saved_at[at] = [saved_at for saved_at, _ in stakes]
        self.again_s[at] = [again_s for _, again_s in stakes]
        self.began[at] = [stage.started_at for stage in stages]
        self.safe_until[at] = [
            stage.started_at + stage.min_runtime_s if stage.min_runtime_s else -np.inf for stage in stages
        ]
        self.is_spared[at] = [stage.deadline_at is not None or stage.most_nodes > stage.least_nodes for stage in stages]
        self.preemptions[at] = [stage.preemptions for stage in stages]
        self.waited_s[at] = [
            stage.started_at - (stage.started_at if stage.eligible_at is None else stage.eligible_at)
            for stage in stages
        ]
        self.project[at] = [self.projects.setdefault(stage.project, len(self.projects)) for stage in stages]

    def leave(self, stage_id: str) -> None:
        for at in self._slots.pop(stage_id, ()):
            self.node[at] = -1
            self.stages[at] = None
            self._spare.append(at)

    def below(self, priority: int, budget: int, now: float) -> Column:
        """The slots of stages of a lower priority that are not safe now and were stopped less often than ``budget``."""
        may = (self.node >= 0) & (self.priority < priority) & (self.safe_until <= now) & (self.preemptions < budget)
        return np.flatnonzero(may)

    def alike(self, priority: int, budget: int, now: float) -> Column:
        """The slots of stages of just this priority that are not safe now and were stopped less often than
        ``budget``."""
        may = (self.node >= 0) & (self.priority == priority) & (self.safe_until <= now) & (self.preemptions < budget)
        return np.flatnonzero(may)

    def left_s(self, now: float) -> Rates:
        """How much longer each will run, in the middle, on a device of speed 1; one value per slot."""
        if self._left is None or self._left[0] != now:
            ran_s = self.ran_s + self.rate * (now - self.began)
            self._left = (now, middle_left_s(self.p50_s, self.p90_s, ran_s))
        return self._left[1]

    def of(self, projects: Iterable[str], now: float) -> Column:
        """The slots of stages of these projects that are not safe now."""
        codes = [self.projects[name] for name in projects if name in self.projects]
        return np.flatnonzero((self.node >= 0) & (self.safe_until <= now) & np.isin(self.project, codes))

    def some_became_unsafe(self, now: float) -> bool:
        """Whether the minimum run time of some of them is over."""
        return bool(((self.node >= 0) & (self.safe_until > -np.inf) & (self.safe_until <= now)).any())

    def were_safe(self, at: float, now: float) -> bool:
        """Whether some that may be stopped ``now`` were within their minimum run time ``at`` an earlier moment."""
        return bool(((self.node >= 0) & (self.began <= at) & (at < self.safe_until) & (self.safe_until <= now)).any())

    def next_unsafe(self, now: float) -> float | None:
        """When the next minimum run time ends."""
        ahead = self.safe_until[(self.node >= 0) & (self.safe_until > now)]
        return float(ahead.min()) if len(ahead) else None

    def prices(self, slots: Column, now: float) -> Column:
        """What stopping each costs; the same as :func:`scheduler.core.world.price.price`."""
        lost_s = np.maximum(now - self.saved_at[slots], 0.0)
        prices: Column = self.weight[slots] * (lost_s + self.again_s[slots])
        return prices

    def _special(self, grants: Iterable[Grant]) -> int:
        """The milli of accelerators among these, or of cores where there are none."""
        held = [(self._fleet.kinds.get(one.device, ""), one.milli) for one in grants]
        special = [milli for kind, milli in held if is_accelerator(kind)]
        return sum(special or [milli for kind, milli in held if is_device(kind)])

    def _ran_s(self, stage: Running) -> float:
        if not stage.attained_device_s:
            return 0.0
        held = self._special(one for rank in stage.placement.grants for one in rank)
        return stage.attained_device_s * 1000 / max(held, 1)

    def _grow(self) -> None:
        size = len(self.node)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                more = np.full_like(column, _SPARE.get(name, 0))
                setattr(self, name, np.concatenate([column, more]))
        self._spare += range(2 * size - 1, size - 1, -1)
