"""The order of the queue: who is looked at first.

Policies give each stage a score; more goes first, then, where projects share, who has a promise, then who came first,
then the smaller number, then the smaller id. From one cycle to the next hardly anything changes places, so the last
order is checked and mended before it is made anew. Where projects share, what those before it in that order will have
received moves each stage once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from scheduler.core.model.types import Stage
from scheduler.core.world.pending import Column, Line
from scheduler.core.world.view import View

# With more newcomers than this the queue is sorted anew.
FEW: Final = 64


class Queue(Sequence[Stage]):
    """The waiting stages in order: ``slots`` of the line, each looked up when somebody asks for it."""

    def __init__(self, line: Line, slots: Column) -> None:
        self.slots = slots
        self._stages = line.stages

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, i: int) -> Stage:  # type: ignore[override]
        found: Stage = self._stages[self.slots[i]]
        return found

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages[self.slots].tolist())


def line_up(view: View) -> Queue:
    """All waiting stages, pool by pool, best first."""
    line = view.line
    slots = line.slots()
    if not len(slots):
        line.keep_order(slots)
        view.heads.see(view, slots, None)
        return Queue(line, slots)
    used = [line.pools[code] for code in np.flatnonzero(np.bincount(line.pool[slots]))]
    for pool in used:
        for policy in view.profile(pool).guarantees:
            view.guaranteed |= policy.guarantees(pool, view)
    view.lifted |= view.guaranteed & view.waiting.keys()
    score = np.round(_scores(view, line, slots, used), 6)
    shared = [pool for pool in used if view.profile(pool).levels]
    keys: tuple[Column, ...] = (-score, line.submitted_at, line.number)
    if shared:
        keys = (-score, _is_unpromised(line, shared), line.submitted_at, line.number)
    if len(used) > 1:
        rank = {code: i for i, code in enumerate(sorted(range(len(line.pools)), key=lambda code: line.pools[code]))}
        keys = (np.array([rank[code] for code in range(len(line.pools))])[line.pool], *keys)
    order, changed = _mended(line, keys) or (_sorted(line, slots, keys), None)
    line.keep_order(order)
    view.heads.see(view, order, changed)
    for pool in shared:
        order = _shared(view, order, score, pool)
    keeping = [pool for pool in used if view.profile(pool).timetable == "keep"]
    if keeping:
        order = _kept_first(line, order, keeping, keys[0] if len(used) > 1 else line.pool)
    return Queue(line, order)


def _is_unpromised(line: Line, pools: list[str]) -> Column:
    """Whether each stage of these pools has no promise; those of others count as if they had."""
    found: Column = ~np.isfinite(line.promised_at)
    if len(pools) < len(line.pools):
        found &= np.isin(line.pool, [line.pools.index(pool) for pool in pools])
    return found


def _shared(view: View, order: Column, score: Column, pool: str) -> Column:
    """The order with the stages of one pool moved by what their projects receive before them.

    Of each project and class only its head is moved; those behind them come after these, as they stood.
    """
    line, shares = view.line, view.heads
    owners = sorted(
        (-line.owners[code][1], line.owners[code][2], code) for code in shares.of if line.owners[code][0] == pool
    )
    heads, spoken = list[tuple[Column, Column]](), dict[str, float]()
    for _, project, code in owners:  # what the stages of a higher class ask for comes first
        one, before = shares.of[code], spoken.get(project, view.taken(project))
        heads.append((one.slots, (before + one.along) / view.weight(project)))
        spoken[project] = before + one.whole
    slots, due = (np.concatenate(some) for some in zip(*heads, strict=True))
    view.due[pool] = (slots, due)
    view.spoken[pool] = sum(spoken.values())
    total = score[slots]
    for policy, weight in view.profile(pool).levels:
        total = total + weight * policy.levels(pool, slots, due, view)
    first = np.lexsort((line.number[slots], -np.round(total, 6)))
    at = np.flatnonzero(line.pool[order] == line.pools.index(pool)) if len(line.pools) > 1 else slice(None)
    tails = order[at][~shares.is_head[order[at]]]
    places = np.searchsorted(-score[tails], -total[first], side="left")
    found = order.copy()
    found[at] = np.insert(tails, places, slots[first])
    return found


def _scores(view: View, line: Line, slots: Column, used: list[str]) -> Column:
    score = np.zeros(len(line.priority))
    for pool in used:
        inside: Column | slice = slice(None) if len(used) == 1 else slots[line.pool[slots] == line.pools.index(pool)]
        for policy, weight in view.profile(pool).orders:
            if hasattr(policy, "levels"):
                continue
            if hasattr(policy, "orders"):
                score[inside] += weight * policy.orders(line, view)[inside]
            else:
                one_by_one = slots if len(used) == 1 else inside
                values = [policy.order(stage, view) for stage in line.stages[one_by_one]]
                score[one_by_one] += weight * np.array(values)
    return score


def _kept_first(line: Line, order: Column, keeping: list[str], pools: Column) -> Column:
    """The same, but where entries are kept whatever comes, those that were promised first are served first."""
    keeps = np.isin(line.pool[order], [line.pools.index(pool) for pool in keeping])
    promised_at = np.where(keeps, line.promised_at[order], np.inf)
    is_free = ~np.isfinite(promised_at)
    kept: Column = order[np.lexsort((np.where(is_free, 0.0, promised_at), is_free, pools[order]))]
    return kept


def _sorted(line: Line, slots: Column, keys: tuple[Column, ...]) -> Column:
    order = slots[np.lexsort([key[slots] for key in reversed(keys)])]
    same = np.ones(len(order) - 1, dtype=np.bool_)
    for key in keys:
        same &= key[order][1:] == key[order][:-1]
    if not same.any():
        return order
    found = order.tolist()
    begin = 0
    for i in range(1, len(found) + 1):
        if i == len(found) or not same[i - 1]:
            if i - begin > 1:
                found[begin:i] = sorted(found[begin:i], key=lambda slot: _id(line, slot))
            begin = i
    return np.array(found, dtype=np.int64)


def _mended(line: Line, keys: tuple[Column, ...]) -> tuple[Column, set[int]] | None:
    """The last order with those taken out who left and those put in who came, and the slots that changed places, if the
    others stand as they stood."""
    if line.order is None or len(line.changed) > FEW:
        return None
    changed = set(line.changed)
    order = _without(line, changed)
    strays = _out_of_order(order, keys)
    if len(strays):  # a few may have changed places although nothing of them changed: the clock moves on
        if len(strays) > FEW:
            return None
        changed |= set(order[strays].tolist()) | set(order[strays + 1].tolist())
        order = _without(line, changed)
        if len(_out_of_order(order, keys)):
            return None
    newcomers = [slot for slot in changed if line.is_used[slot]]
    for slot in sorted(newcomers, key=lambda one: _id(line, one)):
        order = np.insert(order, _place(line, order, slot, keys), slot)
    return order, changed


def _without(line: Line, gone: set[int]) -> Column:
    assert line.order is not None, "there is an order to mend"
    if not gone:
        return line.order
    is_gone = np.zeros(len(line.priority), dtype=np.bool_)
    is_gone[list(gone)] = True
    return line.order[~is_gone[line.order]]


def _out_of_order(order: Column, keys: tuple[Column, ...]) -> Column:
    """The positions after which somebody stands who belongs before them. A key is only looked at where all before it
    are equal."""
    first = keys[0][order]
    strays = [np.flatnonzero(first[1:] < first[:-1])]
    even = np.flatnonzero(first[1:] == first[:-1])
    for key in keys[1:]:
        here, there = key[order[even]], key[order[even + 1]]
        strays.append(even[there < here])
        even = even[there == here]
    return np.concatenate(strays) if len(order) else order


def _place(line: Line, order: Column, slot: int, keys: tuple[Column, ...]) -> int:
    """Where in ``order`` a slot belongs (binary search)."""

    def value(at: int) -> tuple[object, ...]:
        return (*(key[at] for key in keys), _id(line, at))

    mine, low, high = value(slot), 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if value(int(order[middle])) < mine:
            low = middle + 1
        else:
            high = middle
    return low


def _id(line: Line, slot: int) -> str:
    stage: Stage = line.stages[slot]
    return stage.id


def in_order(view: View, names: Iterable[str], queue: Queue) -> list[Stage]:
    """These waiting stages, in the order of the queue."""
    if not names:
        return []
    at = view.positions(queue.slots)
    return [view.waiting[name] for name in sorted(names, key=lambda name: int(at[view.line.slot[name]]))]
