"""What is free on nodes, as policies that place look at it: one line per place, before and after a request is met.

All shares are thousandths of a device or of a core. Devices that a node does not have count as having nothing free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from scheduler.core.fleet import Fleet, Rates, Rows
from scheduler.core.shape import Way
from scheduler.core.view import View

# What is taken last: devices on another NUMA node, after them those that warn, and none that is not free.
_ABROAD, _WARNED, _NOT_FREE = np.int64(2**40), np.int64(2**50), np.int64(2**60)
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Room:
    """The accelerators of some places, a column each, and all cores of their nodes together; now (``free``, ``cores``)
    and once the request is met (``left``, ``cores_left``)."""

    free: Rows
    left: Rows
    cores: Rows
    cores_left: Rows

    @property
    def used(self) -> Rows:
        """How much of the accelerators the request takes at each place."""
        used: Rows = (self.free - self.left).sum(axis=1)
        return used


class Columns:
    """Static facts about the devices of a fleet, for policies that place.

    ``numa`` is the NUMA node of each device row (-1 where it is not known), ``warned`` whether it warns; the last value
    of both stands for "no such device". ``load`` is that of each node row, and ``troubled`` tells which nodes have a
    device that ails, or more to do than they can.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.kinds: tuple[str, ...] = tuple(sorted({device.kind for device in fleet.devices}))
        numas = [-1 if device.numa is None else device.numa for device in fleet.devices]
        self.numa: Rows = np.array([*numas, -1], dtype=np.int64)
        self.warned = np.array([*(device.warned for device in fleet.devices), False], dtype=np.bool_)
        self.load: Rates = np.array([node.load for node in fleet.nodes], dtype=np.float64)
        self.troubled = self.load > 1.0
        self.troubled[[row for device, row in zip(fleet.devices, fleet.owner, strict=True) if device.ails]] = True
        self._fleet = fleet
        self._by_kind: dict[str, Rows] = {}
        self._cached: dict[str, npt.NDArray[np.bool_]] = {}

    def has(self, digest: str) -> npt.NDArray[np.bool_]:
        """On which node rows something already lies."""
        known = self._cached.get(digest)
        if known is None:
            if len(self._cached) >= _REMEMBERED:
                self._cached.clear()
            found = [digest in node.cached for node in self._fleet.nodes]
            known = self._cached[digest] = np.array(found, dtype=np.bool_)
        return known

    def of(self, kind: str) -> Rows:
        """The device rows of one kind on every node; -1 fills up."""
        known = self._by_kind.get(kind)
        if known is None:
            lines = [
                [row for row in self._fleet.rows_of[i].tolist() if row >= 0 and self._fleet.devices[row].kind == kind]
                for i in range(len(self._fleet.nodes))
            ]
            widest = max((len(line) for line in lines), default=0)
            known = np.array([line + [-1] * (widest - len(line)) for line in lines], dtype=np.int64)
            known = self._by_kind[kind] = known.reshape(len(lines), widest)
        return known

    def size(self, kind: str) -> Rows:
        """How much all devices of one kind have, node by node, when nobody uses them."""
        at = self.of(kind)
        size: Rows = np.where(at >= 0, np.append(self._fleet.capacity, 0)[at], 0).sum(axis=1)
        return size


_COLUMNS: WeakKeyDictionary[Fleet, Columns] = WeakKeyDictionary()


def columns(fleet: Fleet) -> Columns:
    """The columns of a fleet, worked out once: a fleet is never altered."""
    known = _COLUMNS.get(fleet)
    if known is None:
        known = _COLUMNS[fleet] = Columns(fleet)
    return known


def free(view: View, nodes: Rows, kind: str) -> Rows:
    """What is free of each device of ``kind`` on these node rows."""
    found: Rows = np.maximum(view.ledger.milli[columns(view.ledger.fleet).of(kind)[nodes]], 0)
    return found


def room(way: Way, rows: Rows, view: View, kind: str) -> Room:
    """The places ``rows`` of ``way``, at which it fits, before and after its request was met.

    Which devices of ``kind`` would be taken is what the engine would do.
    """
    nodes = way.places.nodes[rows]
    own = columns(view.ledger.fleet).of(kind)[nodes]
    before = np.maximum(view.ledger.milli[own], 0)
    after = before.copy()
    for i, ask in enumerate(way.alternative.asks):
        if ask.kind == kind and kind != "cpu":
            chosen, share = taken(way, i, rows, view)
            if ask.count == 1:
                after -= (own == chosen) * share
            else:
                after -= ((own[:, :, None] == chosen[:, None, :]) * share[:, None, :]).sum(axis=2)
    cores = free(view, nodes, "cpu").sum(axis=1)
    asked = sum(ask.count * ask.milli for ask in way.alternative.asks if ask.kind == "cpu")
    return Room(before, np.maximum(after, 0), cores, np.maximum(cores - asked, 0))


def taken(way: Way, ask: int, rows: Rows, view: View) -> tuple[Rows, Rows]:
    """Which device rows the engine would take for the ask number ``ask`` at each place, and how much of each: the same
    choice as :func:`scheduler.core.match.grant` makes, for many places at once."""
    asked = way.alternative.asks[ask]
    at, need = way.rows[ask][rows], way.needs[ask][rows]
    facts = columns(view.ledger.fleet)
    milli = view.ledger.milli[at]
    fits = (milli >= need) & (view.ledger.memory[at] >= asked.memory_bytes)
    spare = np.where(fits, milli + np.where(facts.warned[at], _WARNED, 0), _NOT_FREE)
    if asked.count == 1:
        tightest = np.arange(len(rows)), spare.argmin(axis=1)
        return at[tightest][:, None], need[tightest][:, None]
    numa = np.where(fits & ~facts.warned[at], facts.numa[at], -1)
    home, fewest = np.full(len(rows), -2), np.full(len(rows), _NOT_FREE)
    for code in np.unique(numa[numa >= 0]).tolist():
        size = (numa == code).sum(axis=1)
        better = (size >= asked.count) & (size < fewest)
        home[better], fewest[better] = code, size[better]
    spare += np.where(fits & (facts.numa[at] != home[:, None]), _ABROAD, 0)
    order = spare.argsort(axis=1, kind="stable")[:, : asked.count]
    return np.take_along_axis(at, order, axis=1), np.take_along_axis(need, order, axis=1)


def asked_kinds(way: Way) -> tuple[str, ...]:
    """The kinds of accelerators that a request names, in order."""
    return _without_cpu(ask.kind for ask in way.alternative.asks)


def accelerators(view: View) -> tuple[str, ...]:
    """The kinds of accelerators there are, in order."""
    return _without_cpu(columns(view.ledger.fleet).kinds)


def _without_cpu(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({kind for kind in kinds if kind != "cpu"}))
