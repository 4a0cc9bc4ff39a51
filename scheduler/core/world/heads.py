"""The first waiting stages of each project and class, with the capacity that they and those behind them request.

Where projects share, stages of different projects alternate at the head of the queue. Only the first few stages of each
project and class (an *owner* of the pending table) are interleaved; from cycle to cycle only owners with a change are
computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.core.world.pending import Column

if TYPE_CHECKING:
    from scheduler.core.world.view import View

# Together more than a timetable has entries.
FIRST: Final = 64


@dataclass(frozen=True, slots=True)
class Head:
    """The first stages of one owner: slots of the pending table in order, what the stages before each request
    (``along``, in weighted device-seconds), and what all stages of the owner request together."""

    slots: Column
    along: Column
    whole: float


class Heads:
    """The head of each owner (a code of the pending table) with waiting stages. ``is_head`` tells for each slot of
    the pending table whether it is in one."""

    def __init__(self) -> None:
        self.of: dict[int, Head] = {}
        self.is_head: Column = np.zeros(0, dtype=np.bool_)
        self._owner: Column = np.zeros(0, dtype=np.int64)

    def see(self, view: View, order: Column, changed: Iterable[int] | None) -> None:
        """Update the heads.

        ``order`` are all slots in the order without fair share. ``changed`` are those written or moved since; ``None``
        recomputes all.
        """
        owner = view.pending.owner
        if changed is None or len(self._owner) != len(owner):
            self.of, self.is_head = {}, np.zeros(len(owner), dtype=np.bool_)
            together = order[np.argsort(owner[order], kind="stable")]
            for slots in np.split(together, np.flatnonzero(np.diff(owner[together])) + 1) if len(order) else ():
                self._put(view, int(owner[slots[0]]), slots)
        else:
            at, mine = list(changed), owner[order]
            codes = {*self._owner[at].tolist(), *owner[at].tolist()}
            for code in codes:
                known = self.of.pop(code, None)
                if known is not None:
                    self.is_head[known.slots] = False
            for code in codes:
                slots = order[mine == code]
                if len(slots):
                    self._put(view, code, slots)
        self._owner = owner.copy()

    def _put(self, view: View, code: int, slots: Column) -> None:
        first, charges = slots[:FIRST], view.charges(slots)
        self.is_head[first] = True
        along = np.cumsum(charges[:FIRST]) - charges[:FIRST]
        self.of[code] = Head(first, along, float(charges.sum()))
