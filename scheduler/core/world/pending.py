"""The queue as arrays over all waiting stages, so that a policy can evaluate a hundred thousand at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Stage
from scheduler.core.resources.fleet import Rates

Column = npt.NDArray[Any]
T = TypeVar("T")
_START = 64


def _is_blocked(stage: Stage) -> bool:
    return bool(stage.unmet or stage.blocked_by or stage.awaits or stage.state is State.HELD)


def _is_gated(stage: Stage) -> bool:
    waits = stage.begin_at is not None or stage.retry_at is not None
    is_faulty = stage.bundle_gone or stage.image_missing or stage.secret_missing or stage.pool_refused
    return waits or _is_blocked(stage) or bool(is_faulty)


# The columns that come from a stage itself.
OF_STAGE: Final[Sequence[tuple[str, Callable[[Stage], float]]]] = (
    ("priority", attrgetter("priority")),
    ("submitted_at", attrgetter("submitted_at")),
    ("eligible_at", attrgetter("eligible_at")),
    ("promised_at", lambda stage: stage.promise.start_at if stage.promise else np.inf),
    ("deadline_at", lambda stage: np.inf if stage.deadline_at is None else stage.deadline_at),
    ("p50_s", attrgetter("estimate.p50_s")),
    ("p90_s", attrgetter("estimate.p90_s")),
    ("number", attrgetter("number")),
    ("limit_s", lambda stage: stage.time_limit_s or 0.0),
    ("attained_device_s", attrgetter("attained_device_s")),
    ("is_blocked", _is_blocked),
    ("is_gated", _is_gated),
)
CODES: Final = ("project", "pool", "group", "tier", "owner")


class PendingTable:
    """Waiting stages by slot. Slots of those who left are given to newcomers; :meth:`slots` tells which are in use.
    ``order`` is how they stood when last lined up, ``changed`` are the slots that were written since.

    Columns, one value per slot: ``priority``, ``submitted_at``, ``eligible_at``, ``number``, ``promised_at`` and
    ``deadline_at`` (infinite without one), ``limit_s`` (0 without one), ``p50_s``, ``p90_s``, ``attained_device_s``,
    ``project`` and ``pool`` (codes into ``projects`` and ``pools``), and ``group``: stages of one group ask for the
    same in the same place, for the same owner at the same priority, those of one ``tier`` (a request class and a
    priority) for whatever owner; those of one ``owner`` share pool, priority and project, whatever they ask for.
    ``length_s`` is how long each would run in the fastest way open to it; ``is_blocked`` says that it is held or needs
    something that is not done, ``is_gated`` that, or that it may not start before a certain time or cannot be fetched.
    ``is_used`` tells the slots in use.
    """

    def __init__(self) -> None:
        self.slot: dict[str, int] = {}
        self.stages: Column = np.empty(_START, dtype=object)
        self.order: Column | None = None
        self.changed: set[int] = set()
        self.projects: list[str] = []
        self.pools: list[str] = []
        self.groups: list[object] = []
        self.tiers: list[tuple[Any, int]] = []
        self.owners: list[tuple[str, int, str]] = []
        self._codes: dict[tuple[str, object], int] = {}
        self._codes_by_group: dict[object, tuple[int, ...]] = {}
        self._by_group: Column = np.zeros((0, len(CODES)), dtype=np.int64)
        self._spare: list[int] = list(range(_START - 1, -1, -1))
        self._waiting_projects: list[str] | None = None
        self.priority: Column = np.zeros(_START)
        self.submitted_at: Column = np.zeros(_START)
        self.eligible_at: Column = np.zeros(_START)
        self.promised_at: Column = np.zeros(_START)
        self.deadline_at: Column = np.zeros(_START)
        self.p50_s: Column = np.zeros(_START)
        self.p90_s: Column = np.zeros(_START)
        self.attained_device_s: Column = np.zeros(_START)
        self.number: Column = np.zeros(_START, dtype=np.int64)
        self.limit_s: Column = np.zeros(_START)
        self.project: Column = np.zeros(_START, dtype=np.int64)
        self.pool: Column = np.zeros(_START, dtype=np.int64)
        self.group: Column = np.zeros(_START, dtype=np.int64)
        self.tier: Column = np.zeros(_START, dtype=np.int64)
        self.length_s: Column = np.zeros(_START)
        self.owner: Column = np.zeros(_START, dtype=np.int64)
        self.is_blocked: Column = np.zeros(_START, dtype=np.bool_)
        self.is_gated: Column = np.zeros(_START, dtype=np.bool_)
        self.is_used: Column = np.zeros(_START, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.slot)

    def enter(self, stage: Stage, group: object, tier: tuple[Any, int], length_s: float) -> None:
        """Add a stage, or update its values. Its group determines all codes of a stage."""
        at = self._slot_of(stage)
        self.stages[at] = stage
        for name, value in OF_STAGE:
            getattr(self, name)[at] = value(stage)
        for name, code in zip(CODES, self._codes_of(stage, group, tier), strict=True):
            getattr(self, name)[at] = code
        self.length_s[at] = length_s
        self.is_used[at] = True
        self.changed.add(at)
        self._waiting_projects = None

    def fill(
        self, stages: Sequence[Stage], groups: Sequence[object], tiers: Sequence[tuple[Any, int]], lengths: Rates
    ) -> None:
        """Put many in at once, the same way."""
        slots = [self._slot_of(stage) for stage in stages]
        at = np.array(slots, dtype=np.int64)
        column = np.empty(len(stages), dtype=object)
        column[:] = stages
        self.stages[at] = column
        for name, value in OF_STAGE:
            getattr(self, name)[at] = list(map(value, stages))
        codes = np.array([self._codes_of(*one) for one in zip(stages, groups, tiers, strict=True)], dtype=np.int64)
        for name, column in zip(CODES, codes.T, strict=True):
            getattr(self, name)[at] = column
        self.length_s[at] = lengths
        self.is_used[at] = True
        self.changed.update(slots)
        self._waiting_projects = None

    def remove(self, stage_id: str) -> None:
        at = self.slot.pop(stage_id)
        self.stages[at] = None
        self.is_used[at] = False
        self.changed.add(at)
        self._waiting_projects = None
        self._spare.append(at)

    def keep_order(self, order: Column) -> None:
        """Remember in which order the slots stood; ``changed`` counts from now on."""
        self.order = order
        self.changed = set()

    def slots(self) -> npt.NDArray[np.int64]:
        """The slots in use, ascending."""
        return np.flatnonzero(self.is_used)

    @property
    def by_group(self) -> Column:
        """The codes of each group, a row per group and a column per name in ``CODES``."""
        if len(self._by_group) < len(self.groups):
            new = list(self._codes_by_group.values())[len(self._by_group) :]
            self._by_group = np.concatenate([self._by_group, np.array(new, dtype=np.int64)])
        return self._by_group

    def by_project(self, values: Iterable[tuple[str, float]]) -> Column:
        """A value of each project as a column over all slots; projects that are not named get 0."""
        known = dict(values)
        table = np.array([known.get(name, 0.0) for name in self.projects] or [0.0])
        return table[self.project]

    @property
    def waiting_projects(self) -> list[str]:
        """The projects that a stage in use is of; ``projects`` may also have such of which none waits any more."""
        if self._waiting_projects is None:
            here = np.flatnonzero(np.bincount(self.project[self.is_used]))
            self._waiting_projects = [self.projects[code] for code in here.tolist()]
        return self._waiting_projects

    def forget_groups(self) -> None:
        """Give the stages in use new codes, so that nothing is kept of what no stage has any more."""
        used = self.slots()
        table = self.by_group[np.unique(self.group[used])]
        for at, sort in enumerate(CODES):
            kept, names, column = np.unique(table[:, at]), getattr(self, f"{sort}s"), getattr(self, sort)
            setattr(self, f"{sort}s", [names[code] for code in kept.tolist()])
            table[:, at] = np.searchsorted(kept, table[:, at])
            codes = np.searchsorted(kept, column[used])
            column[:] = 0
            column[used] = codes
        self._codes = {(sort, name): code for sort in CODES for code, name in enumerate(getattr(self, f"{sort}s"))}
        self._codes_by_group = dict(zip(self.groups, map(tuple, table.tolist()), strict=True))
        self._by_group = table

    def _slot_of(self, stage: Stage) -> int:
        at = self.slot.get(stage.id)
        if at is None:
            if not self._spare:
                self._grow()
            at = self.slot[stage.id] = self._spare.pop()
        return at

    def _codes_of(self, stage: Stage, group: object, tier: tuple[Any, int]) -> tuple[int, ...]:
        known = self._codes_by_group.get(group)
        if known is None:
            owner = (stage.pool, stage.priority, stage.project)
            known = self._codes_by_group[group] = (
                self._code("project", stage.project, self.projects),
                self._code("pool", stage.pool, self.pools),
                self._code("group", group, self.groups),
                self._code("tier", tier, self.tiers),
                self._code("owner", owner, self.owners),
            )
        return known

    def _code(self, sort: str, name: T, names: list[T]) -> int:
        code = self._codes.get((sort, name))
        if code is None:
            code = self._codes[sort, name] = len(names)
            names.append(name)
        return code

    def _grow(self) -> None:
        size = len(self.priority)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray) and name not in ("order", "_by_group"):
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.stages[size:] = None
        self._spare += range(2 * size - 1, size - 1, -1)
