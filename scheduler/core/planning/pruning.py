"""Pruning: stages of the queue that the walk can skip, because decisions for other stages imply theirs.

Once a request fits on no node, or was refused for a run time, no later stage with the same request, the same priority
and at least the same run time can start, whoever owns it. Once a project has reached its quota, none of its stages of
the same group may start. A stage for which others might be preempted is never skipped. Requests that fit nowhere at the
start of the cycle, and priorities that cannot preempt, are known before the walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from scheduler.core.hooks import Victims
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Stage
from scheduler.core.world.pending import CODES, Column
from scheduler.core.world.request_class import RequestClass
from scheduler.core.world.view import View

# So many positions are sifted at once, and twice as many after each time that left none, up to the most.
STRIDE: Final = 64
MOST: Final = 16_384


class Pruning:
    """One walk over the queue; ``slots`` are the slots of the pending table in queue order."""

    def __init__(self, view: View, slots: Column) -> None:
        pending = view.pending
        self._view, self._slots, self._group = view, slots, pending.group[slots]
        codes = pending.by_group
        self._tier_of, self._owner_of = codes[:, CODES.index("tier")], codes[:, CODES.index("owner")]
        self._pool_of = codes[:, CODES.index("pool")]
        # By tier, owner and group: what was learned so far.
        self._closed_from = np.full(len(pending.tiers), np.inf)
        self._may_evict = np.ones(len(pending.owners), dtype=np.bool_)
        self._is_barred = np.zeros(len(pending.groups), dtype=np.bool_)
        self._is_spent = np.zeros(len(pending.groups), dtype=np.bool_)
        self._is_lifted: Column | None = None
        self._lifted: set[str] = set()
        self._foretell()
        self._known: Column | None = None
        self._before_pool: dict[int, int] = {}
        self._never = self._closed_from == -np.inf

    def positions(self) -> Iterator[int]:
        """Yield the positions that must be looked at, in order, using what was learned up to then."""
        set_aside = self._set_aside()
        begin, stride = 0, STRIDE
        while begin < len(self._slots):
            found = self._open_among(slice(begin, begin + stride), set_aside)
            lifted = len(self._view.lifted)
            end, stride = begin + stride, STRIDE if found else min(2 * stride, MOST)
            for i in found:
                if self._must_see(begin + i):
                    yield begin + i
                    # What was learned may hold back many of those behind; what was lifted must be looked at again.
                    if len(found) > STRIDE or len(self._view.lifted) > lifted:
                        end = begin + i + 1
                        break
            begin = end

    def close(self, i: int, length_s: float) -> None:
        """Note that no stage of the same tier as the one at ``i`` that runs at least ``length_s`` can start or be
        reserved for."""
        tier = self._tier_of[self._group[i]]
        self._closed_from[tier] = min(self._closed_from[tier], length_s)

    def bar(self, i: int) -> None:
        """Note that no stage of the same group as the one at ``i`` may start, whatever is free."""
        self._is_barred[self._group[i]] = True

    def spare(self, i: int, *, whatever_it_asks: bool) -> None:
        """Note that nothing is preempted for stages like the one at ``i``, or for any stage of its owner if
        ``whatever_it_asks``."""
        if whatever_it_asks:
            self._may_evict[self._owner_of[self._group[i]]] = False
        else:
            self._is_spent[self._group[i]] = True

    def held_back(self, i: int) -> int:
        """Return how many stages of the same pool before the one at ``i`` were known from the beginning not to
        start."""
        if self._known is None:
            never = self._never[self._tier_of[self._group]] & ~self._view.pending.is_gated[self._slots]
            self._known = np.cumsum(never) - never
        pool = int(self._pool_of[self._group[i]])
        if pool not in self._before_pool:
            self._before_pool[pool] = self._known[np.argmax(self._pool_of[self._group] == pool)]
        return int(self._known[i] - self._before_pool[pool])

    def _foretell(self) -> None:
        """Close tiers that fit nowhere at the start, and note priorities and projects that cannot preempt."""
        view, pending = self._view, self._view.pending
        here = np.bincount(self._group, minlength=len(pending.groups)) > 0
        fits: dict[RequestClass, bool] = {}
        rooms: dict[tuple[str, int], bool] = {}
        for code in np.flatnonzero(np.bincount(self._tier_of[here])).tolist():
            request, priority = pending.tiers[code]
            profile, rank = view.profile(request.pool), (request.pool, priority)
            if rank not in rooms:
                rooms[rank] = view.room(request.pool, priority, profile)
            if rooms[rank] or request.impossible:
                continue
            if request not in fits:
                for feasible in request.feasible_sets:
                    view.refresh(feasible, profile)
                fits[request] = any(feasible.count >= request.nodes for feasible in request.feasible_sets)
            if not fits[request]:
                self._closed_from[code] = -np.inf
        first = np.full(len(pending.groups), len(self._slots))
        first[self._group[::-1]] = np.arange(len(self._slots) - 1, -1, -1)
        foremost = np.full(len(pending.owners), len(self._slots))
        np.minimum.at(foremost, self._owner_of, first)
        asked: dict[tuple[str, float, str], bool] = {}
        for code in np.flatnonzero(foremost < len(self._slots)).tolist():
            pool, priority, project = pending.owners[code]
            profile = view.profile(pool)
            key = (pool, priority, project if profile.reclaims else "")
            if key not in asked:
                stage: Stage = pending.stages[self._slots[foremost[code]]]
                asked[key] = any(_could(view, policy, stage) for policy in profile.evicts)
            self._may_evict[code] = asked[key]

    def _open_among(self, at: slice, set_aside: Column | None) -> list[int]:
        """Return which of these positions may have to be looked at, relative to the first."""
        group, pending = self._group[at], self._view.pending
        evicts = self._may_evict[self._owner_of] & ~self._is_spent
        closed_from = self._closed_from[self._tier_of]
        found = (evicts | (closed_from > -np.inf))[group]
        if set_aside is not None:
            found &= ~set_aside[at]
        some = np.flatnonzero(found)
        if len(some):
            groups, slots = group[some], self._slots[at][some]
            is_open = evicts[groups] | (closed_from[groups] > pending.length_s[slots])
            some = some[is_open & (~self._is_barred[groups] | pending.is_gated[slots])]
        self._note_lifted()
        if self._is_lifted is not None:
            some = np.union1d(some, np.flatnonzero(self._is_lifted[self._slots[at]]))
        return some.tolist()

    def _must_see(self, i: int) -> bool:
        """Return whether this position must be looked at, with what was learned meanwhile."""
        group, slot, pending = self._group[i], self._slots[i], self._view.pending
        evicts = self._may_evict[self._owner_of[group]] and not self._is_spent[group]
        is_open = evicts or self._closed_from[self._tier_of[group]] > pending.length_s[slot]
        if is_open and (not self._is_barred[group] or pending.is_gated[slot]):
            return True
        self._note_lifted()
        return self._is_lifted is not None and bool(self._is_lifted[slot])

    def _note_lifted(self) -> None:
        if len(self._lifted) < len(self._view.lifted):
            slot = self._view.pending.slot
            if self._is_lifted is None:
                self._is_lifted = np.zeros(len(self._view.pending.priority), dtype=np.bool_)
            self._is_lifted[[slot[name] for name in self._view.lifted - self._lifted]] = True
            self._lifted = set(self._view.lifted)

    def _set_aside(self) -> Column | None:
        """Return for each stage whether its own state blocks it while the timetable takes no more reservations of
        its priority."""
        view, pending = self._view, self._view.pending
        blocked = pending.is_blocked[self._slots]
        if not blocked.any():
            return None
        full = np.zeros(len(pending.owners), dtype=np.bool_)
        rooms: dict[tuple[str, int], bool] = {}
        for code in np.flatnonzero(np.bincount(self._owner_of[self._group[blocked]])).tolist():
            rank = pending.owners[code][:2]
            if rank not in rooms:
                rooms[rank] = view.room(*rank, view.profile(rank[0]))
            full[code] = not rooms[rank]
        found: Column = blocked & full[self._owner_of][self._group]
        return found


def is_spent(profile: Profile, request: RequestClass, stage: Stage) -> bool:
    """Return whether victims for such a stage were looked for in this cycle without success."""
    return (stage.project if profile.reclaims else "") in request.evictions_refused


def could_evict(view: View, profile: Profile, request: RequestClass, stage: Stage) -> bool:
    """Return whether it is worth looking for victims for a stage of this priority and project."""
    if not profile.evicts or is_spent(profile, request, stage):
        return False
    return any(_could(view, policy, stage) for policy in profile.evicts)


def _could(view: View, policy: Victims, stage: Stage) -> bool:
    """Return the policy's answer, cached by priority and, if the policy depends on it, by project."""
    key = (id(policy), stage.pool, stage.priority, stage.project if policy.by_project else "", len(view.chosen_victims))
    known = view.evictable.get(key)
    if known is None:
        known = view.evictable[key] = policy.could(stage, view)
    return known
