"""The order of the queue.

Policies give each stage a score. Higher scores come first; ties are broken by an existing promise (only in pools where
projects share), submission time, job number and id. Because few stages change places between cycles, the last order is
repaired if possible and sorted anew otherwise. Where projects share, each stage is then moved by what its project will
have received before its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from scheduler.core.model.types import Stage
from scheduler.core.world.pending import Column, PendingTable
from scheduler.core.world.view import View

# With more new stages than this the queue is sorted completely.
FEW: Final = 64


class StageOrder(Sequence[Stage]):
    """The waiting stages in order, as slots of the pending table; each stage is looked up when it is read."""

    def __init__(self, pending: PendingTable, slots: Column) -> None:
        self.slots = slots
        self._stages = pending.stages

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, i: int) -> Stage:  # type: ignore[override]
        found: Stage = self._stages[self.slots[i]]
        return found

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages[self.slots].tolist())


def line_up(view: View) -> StageOrder:
    """Return all waiting stages, pool by pool, best first."""
    pending = view.pending
    slots = pending.slots()
    if not len(slots):
        pending.keep_order(slots)
        view.heads.see(view, slots, None)
        return StageOrder(pending, slots)
    used = [pending.pools[code] for code in np.flatnonzero(np.bincount(pending.pool[slots]))]
    for pool in used:
        for policy in view.profile(pool).guarantees:
            view.guaranteed |= policy.guarantees(pool, view)
    view.lifted |= view.guaranteed & view.waiting.keys()
    score = np.round(_scores(view, pending, slots, used), 6)
    shared = [pool for pool in used if view.profile(pool).levels]
    keys: tuple[Column, ...] = (-score, pending.submitted_at, pending.number)
    if shared:
        keys = (-score, _is_unpromised(pending, shared), pending.submitted_at, pending.number)
    if len(used) > 1:
        rank = {
            code: i for i, code in enumerate(sorted(range(len(pending.pools)), key=lambda code: pending.pools[code]))
        }
        keys = (np.array([rank[code] for code in range(len(pending.pools))])[pending.pool], *keys)
    order, changed = _mended(pending, keys) or (_sorted(pending, slots, keys), None)
    pending.keep_order(order)
    view.heads.see(view, order, changed)
    for pool in shared:
        order = _shared(view, order, score, pool)
    keeping = [pool for pool in used if view.profile(pool).timetable == "keep"]
    if keeping:
        order = _kept_first(pending, order, keeping, keys[0] if len(used) > 1 else pending.pool)
    return StageOrder(pending, order)


def _is_unpromised(pending: PendingTable, pools: list[str]) -> Column:
    """Return for each stage whether it has no promise; false for stages of other pools."""
    found: Column = ~np.isfinite(pending.promised_at)
    if len(pools) < len(pending.pools):
        found &= np.isin(pending.pool, [pending.pools.index(pool) for pool in pools])
    return found


def _shared(view: View, order: Column, score: Column, pool: str) -> Column:
    """Return the order with the stages of one pool moved by what their projects receive before their turn.

    Only the first stages of each project and class are moved; those behind them follow in their former order.
    """
    pending, shares = view.pending, view.heads
    owners = sorted(
        (-pending.owners[code][1], pending.owners[code][2], code)
        for code in shares.of
        if pending.owners[code][0] == pool
    )
    heads, spoken = list[tuple[Column, Column]](), dict[str, float]()
    for _, project, code in owners:  # stages of a higher class come first
        one, before = shares.of[code], spoken.get(project, view.taken(project))
        heads.append((one.slots, (before + one.along) / view.weight(project)))
        spoken[project] = before + one.whole
    slots, due = (np.concatenate(some) for some in zip(*heads, strict=True))
    view.due[pool] = (slots, due)
    view.spoken[pool] = sum(spoken.values())
    total = score[slots]
    for policy, weight in view.profile(pool).levels:
        total = total + weight * policy.levels(pool, slots, due, view)
    first = np.lexsort((pending.number[slots], -np.round(total, 6)))
    at = np.flatnonzero(pending.pool[order] == pending.pools.index(pool)) if len(pending.pools) > 1 else slice(None)
    tails = order[at][~shares.is_head[order[at]]]
    places = np.searchsorted(-score[tails], -total[first], side="left")
    found = order.copy()
    found[at] = np.insert(tails, places, slots[first])
    return found


def _scores(view: View, pending: PendingTable, slots: Column, used: list[str]) -> Column:
    score = np.zeros(len(pending.priority))
    for pool in used:
        mine = slots if len(used) == 1 else slots[pending.pool[slots] == pending.pools.index(pool)]
        profile = view.profile(pool)
        leveled = [policy for policy, _ in profile.levels]
        for policy, weight in profile.ranks:
            if policy not in leveled:
                score[mine] += weight * policy.ranks(pending, mine, view)
    return score


def _kept_first(pending: PendingTable, order: Column, keeping: list[str], pools: Column) -> Column:
    """Return the order with promised stages first, in the order of their promises, in pools that always keep
    reservations."""
    keeps = np.isin(pending.pool[order], [pending.pools.index(pool) for pool in keeping])
    promised_at = np.where(keeps, pending.promised_at[order], np.inf)
    is_free = ~np.isfinite(promised_at)
    kept: Column = order[np.lexsort((np.where(is_free, 0.0, promised_at), is_free, pools[order]))]
    return kept


def _sorted(pending: PendingTable, slots: Column, keys: tuple[Column, ...]) -> Column:
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
                found[begin:i] = sorted(found[begin:i], key=lambda slot: _id(pending, slot))
            begin = i
    return np.array(found, dtype=np.int64)


def _mended(pending: PendingTable, keys: tuple[Column, ...]) -> tuple[Column, set[int]] | None:
    """Return the last order with stages that left removed and new ones inserted, and the slots that changed places.

    Returns ``None`` if too much changed.
    """
    if pending.order is None or len(pending.changed) > FEW:
        return None
    changed = set(pending.changed)
    order = _without(pending, changed)
    strays = _out_of_order(order, keys)
    if len(strays):  # a few may have changed places although nothing of them changed: the clock moves on
        if len(strays) > FEW:
            return None
        changed |= set(order[strays].tolist()) | set(order[strays + 1].tolist())
        order = _without(pending, changed)
        if len(_out_of_order(order, keys)):
            return None
    newcomers = [slot for slot in changed if pending.is_used[slot]]
    for slot in sorted(newcomers, key=lambda one: _id(pending, one)):
        order = np.insert(order, _place(pending, order, slot, keys), slot)
    return order, changed


def _without(pending: PendingTable, gone: set[int]) -> Column:
    assert pending.order is not None, "there is an order to mend"
    if not gone:
        return pending.order
    is_gone = np.zeros(len(pending.priority), dtype=np.bool_)
    is_gone[list(gone)] = True
    return pending.order[~is_gone[pending.order]]


def _out_of_order(order: Column, keys: tuple[Column, ...]) -> Column:
    """Return the positions whose next stage belongs before them. A key is compared only where all keys before it are
    equal."""
    first = keys[0][order]
    strays = [np.flatnonzero(first[1:] < first[:-1])]
    even = np.flatnonzero(first[1:] == first[:-1])
    for key in keys[1:]:
        here, there = key[order[even]], key[order[even + 1]]
        strays.append(even[there < here])
        even = even[there == here]
    return np.concatenate(strays) if len(order) else order


def _place(pending: PendingTable, order: Column, slot: int, keys: tuple[Column, ...]) -> int:
    """Return the position at which a slot belongs in ``order``, by binary search."""

    def value(at: int) -> tuple[object, ...]:
        return (*(key[at] for key in keys), _id(pending, at))

    mine, low, high = value(slot), 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if value(int(order[middle])) < mine:
            low = middle + 1
        else:
            high = middle
    return low


def _id(pending: PendingTable, slot: int) -> str:
    stage: Stage = pending.stages[slot]
    return stage.id


def in_order(view: View, names: Iterable[str], queue: StageOrder) -> list[Stage]:
    """Return these waiting stages in the order of the queue."""
    if not names:
        return []
    at = view.positions(queue.slots)
    return [view.waiting[name] for name in sorted(names, key=lambda name: int(at[view.pending.slot[name]]))]
