"""Compares the decisions of two profiles on the same world: starts, stops and expectations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Plan, Running, Snapshot, Stage
from scheduler.decisions import replay
from scheduler.decisions.log import Record


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one decision under two profiles; stages are named by their ids.

    ``elsewhere`` start under both, on other devices. ``earlier_s`` is the mean, over the stages that wait under both
    with an expected start, of how much earlier the second expects them to start (negative: later).
    """

    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    earlier_s: float | None = None

    @property
    def any(self) -> bool:
        """Whether the two plans would act differently at that time."""
        return bool(self.only_first or self.only_second or self.elsewhere or self.spared or self.evicted)


def compare(first: Plan, second: Plan, among: Container[str] | None = None) -> Difference:
    """Return how the second plan differs from the first; with ``among`` only for these stages, by their ids."""

    def counts(stage: str) -> bool:
        return among is None or stage in among

    one = {start.stage: start.placement for start in first.starts if counts(start.stage)}
    two = {start.stage: start.placement for start in second.starts if counts(start.stage)}
    gone_one = {one.victim for one in first.stops if counts(one.victim)}
    gone_two = {one.victim for one in second.stops if counts(one.victim)}
    expected = {wait.stage: wait.expected.at for wait in second.waits if wait.expected and counts(wait.stage)}
    shifts = [
        wait.expected.at - expected[wait.stage] for wait in first.waits if wait.expected and wait.stage in expected
    ]
    return Difference(
        only_first=tuple(sorted(set(one) - set(two))),
        only_second=tuple(sorted(set(two) - set(one))),
        elsewhere=tuple(sorted(name for name in set(one) & set(two) if one[name] != two[name])),
        spared=tuple(sorted(gone_one - gone_two)),
        evicted=tuple(sorted(gone_two - gone_one)),
        earlier_s=round(fmean(shifts), 3) if shifts else None,
    )


@dataclass
class DifferenceSum:
    """The sum of many differences. Counts are of decisions, and of stages over all of them."""

    decisions: int = 0
    different: int = 0
    starts_first: int = 0
    starts_second: int = 0
    only_first: int = 0
    only_second: int = 0
    elsewhere: int = 0
    preempts_first: int = 0
    preempts_second: int = 0
    earlier_s: float | None = None
    began_at: float | None = None
    ended_at: float | None = None
    stages: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        found = asdict(self)
        found["stages"] = dict(self.stages.most_common(20))
        return found


def over(
    records: Iterable[Record], first: Profile | None, second: Profile
) -> tuple[DifferenceSum, list[tuple[int, Difference]]]:
    """Evaluate both profiles on every recorded world; ``first`` is ``None`` for the recorded decision.

    Each decision stands alone: the next world is the recorded one, whatever the second profile would have done.
    """
    week, found, shifts = DifferenceSum(), [], []
    for record in records:
        one = record.plan if first is None else replay.under(record, first)
        two = replay.under(record, second)
        seen = compare(one, two)
        names = named(record.snapshot)
        week.decisions += 1
        week.different += seen.any
        week.starts_first += len(one.starts)
        week.starts_second += len(two.starts)
        week.only_first += len(seen.only_first)
        week.only_second += len(seen.only_second)
        week.elsewhere += len(seen.elsewhere)
        week.preempts_first += len(one.preempts)
        week.preempts_second += len(two.preempts)
        week.stages.update(names[name] for name in (*seen.only_first, *seen.only_second, *seen.evicted, *seen.spared))
        week.began_at = record.at if week.began_at is None else min(week.began_at, record.at)
        week.ended_at = record.at if week.ended_at is None else max(week.ended_at, record.at)
        if seen.earlier_s is not None:
            shifts.append(seen.earlier_s)
        if seen.any:
            found.append((record.id, seen))
    week.earlier_s = round(fmean(shifts), 3) if shifts else None
    return week, found


def named(world: Snapshot, among: Container[str] | None = None) -> dict[str, str]:
    """Return the display names of the stages of a world, or of those ``among`` them: ``#12/train``."""
    everyone: list[Stage | Running] = [*world.waiting, *world.running]
    return {one.id: f"#{one.number}/{one.name}" for one in everyone if among is None or one.id in among}
