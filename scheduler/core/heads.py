"""The first waiting stages of each project and class, and what they and those behind them ask for.

Projects take turns at the head of the queue. Nobody looks how those at its end would interleave: of each project and
class (an *owner* of the line) the first few are kept, and from one cycle to the next only those of owners of which
something changed are looked up again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.core.line import Column

if TYPE_CHECKING:
    from scheduler.core.view import View

# Together more than a timetable has entries.
FIRST: Final = 64


@dataclass(frozen=True, slots=True)
class Head:
    """Of one owner: slots of the line in their order, what those before each ask for (``along``, device-seconds
    weighted by worth), and what all of the owner's stages ask for together."""

    slots: Column
    along: Column
    whole: float


class Heads:
    """By owner (a code of the line) its head; only those that have stages waiting. ``is_head`` tells whether each slot
    of the line is in one."""

    def __init__(self) -> None:
        self.of: dict[int, Head] = {}
        self.is_head: Column = np.zeros(0, dtype=np.bool_)
        self._owner: Column = np.zeros(0, dtype=np.int64)

    def see(self, view: View, order: Column, changed: Iterable[int] | None) -> None:
        """Bring them up to date: ``order`` are all slots as they stand without regard to shares, ``changed`` those that
        were written or moved since; ``None`` looks at all."""
        owner = view.line.owner
        if changed is None or len(self._owner) != len(owner):
            self.of, self.is_head = {}, np.zeros(len(owner), dtype=np.bool_)
            codes = np.unique(owner[order]).tolist()
        else:
            at = list(changed)
            codes = sorted({*self._owner[at].tolist(), *owner[at].tolist()})
        mine = owner[order]
        for code in codes:
            if code in self.of:
                self.is_head[self.of[code].slots] = False
        for code in codes:
            slots = order[mine == code]
            if len(slots):
                charges = view.charges(slots)
                first = slots[:FIRST]
                self.is_head[first] = True
                self.of[code] = Head(first, np.cumsum(charges[:FIRST]) - charges[:FIRST], float(charges.sum()))
            else:
                self.of.pop(code, None)
        self._owner = owner.copy()
