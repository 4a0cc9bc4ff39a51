"""Free capacity of nodes for placement policies: one line per place, before and after a request is met.

All shares are thousandths of a device or of a core. A device that a node does not have counts as not free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Node
from scheduler.core.resources import topology
from scheduler.core.resources.fleet import Fleet, Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet

# What is taken last: devices on another NUMA node, after them those of another link group, then those that warn, and
# none that is not free.
_ABROAD, _APART, _WARNED, _NOT_FREE = np.int64(2**40), np.int64(2**45), np.int64(2**50), np.int64(2**60)
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
    """Facts about the devices of a fleet, for placement policies; :meth:`follow` updates them.

    ``kinds`` are the existing kinds of devices. ``numa`` and ``group`` are the NUMA node and the link group of each
    device row (-1 if unknown), ``warned`` whether it is degraded; the last value of each stands for "no such device".
    For each node row, ``gbps`` is the bandwidth of its link (Gbit/s; 0 if unknown), ``load`` its load, and ``troubled``
    whether it has an unhealthy or degraded device, or is overloaded.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._followed = fleet, len(fleet.changes)
        self.kinds: tuple[str, ...] = tuple(sorted(set(fleet.kinds.values())))
        numas = [-1 if device.numa is None else device.numa for device in fleet.devices]
        self.numa: Rows = np.array([*numas, -1], dtype=np.int64)
        groups = [-1 if device.group is None else device.group for device in fleet.devices]
        self.group: Rows = np.array([*groups, -1], dtype=np.int64)
        self.warned = np.array([*(device.warned for device in fleet.devices), False], dtype=np.bool_)
        self.gbps: Rates = np.array([topology.bandwidth(node) for node in fleet.nodes], dtype=np.float64)
        self.load: Rates = np.array([node.load for node in fleet.nodes], dtype=np.float64)
        self.troubled = np.array([_is_troubled(node) for node in fleet.nodes], dtype=np.bool_)
        self._by_kind: dict[str, Rows] = {}
        self._cached: dict[str, npt.NDArray[np.bool_]] = {}

    def follow(self) -> None:
        """Look again at the nodes that changed since the last time."""
        fleet, begin = self._fleet, self._followed
        if len(fleet.changes) == begin:
            return
        self._followed = len(fleet.changes)
        more = len(fleet.devices) + 1 - len(self.numa)
        if more:
            self.numa, self.warned = np.append(self.numa, [-1] * more), np.append(self.warned, [False] * more)
            self.group = np.append(self.group, [-1] * more)
        if news := len(fleet.nodes) - len(self.gbps):
            self.gbps, self.load = np.append(self.gbps, [0.0] * news), np.append(self.load, [0.0] * news)
            self.troubled = np.append(self.troubled, [False] * news)
        nodes = sorted(set(fleet.changes[begin:]))
        for node in nodes:
            for row in fleet.rows_at(node):
                device = fleet.devices[row]
                self.numa[row] = -1 if device.numa is None else device.numa
                self.group[row] = -1 if device.group is None else device.group
                self.warned[row] = device.warned
            here = fleet.nodes[node]
            self.gbps[node], self.load[node] = topology.bandwidth(here), here.load
            self.troubled[node] = _is_troubled(here)
        self.kinds = tuple(sorted(set(fleet.kinds.values())))
        for digest, known in self._cached.items():
            if len(known) < len(fleet.nodes):
                known = self._cached[digest] = np.append(known, [False] * (len(fleet.nodes) - len(known)))
            known[nodes] = [digest in fleet.nodes[node].cached for node in nodes]
        for kind, rows in self._by_kind.items():
            lines = [self._line(kind, node) for node in nodes]
            width = max(rows.shape[1], *(len(line) for line in lines))
            wider = np.full((len(fleet.nodes), width), -1, dtype=np.int64)
            wider[: len(rows), : rows.shape[1]] = rows
            wider[nodes] = [line + [-1] * (width - len(line)) for line in lines]
            self._by_kind[kind] = wider

    def has(self, digest: str) -> npt.NDArray[np.bool_]:
        """Return on which node rows an input is cached."""
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
            lines = [self._line(kind, node) for node in range(len(self._fleet.nodes))]
            widest = max((len(line) for line in lines), default=0)
            known = np.array([line + [-1] * (widest - len(line)) for line in lines], dtype=np.int64)
            known = self._by_kind[kind] = known.reshape(len(lines), widest)
        return known

    def _line(self, kind: str, node: int) -> list[int]:
        rows, devices = self._fleet.rows_of[node].tolist(), self._fleet.devices
        return [row for row in rows if row >= 0 and devices[row].kind == kind]

    def size(self, kind: str) -> Rows:
        """Return the capacity of all devices of one kind, by node."""
        at = self.of(kind)
        size: Rows = np.where(at >= 0, np.append(self._fleet.capacity, 0)[at], 0).sum(axis=1)
        return size


def _is_troubled(node: Node) -> bool:
    return node.load > 1.0 or any(device.ails for device in node.devices)


_COLUMNS: WeakKeyDictionary[Fleet, Columns] = WeakKeyDictionary()


def columns(fleet: Fleet) -> Columns:
    """The columns of a fleet, worked out once and kept true."""
    known = _COLUMNS.get(fleet)
    if known is None:
        known = _COLUMNS[fleet] = Columns(fleet)
    known.follow()
    return known


def free(world: ReadOnlyWorld, nodes: Rows, kind: str) -> Rows:
    """Return the free share of each device of ``kind`` on these node rows."""
    found: Rows = np.maximum(world.ledger.milli[columns(world.ledger.fleet).of(kind)[nodes]], 0)
    return found


def room(feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld, kind: str) -> Room:
    """Return the places ``rows`` of ``feasible``, on which it fits, before and after its request is met.

    The devices of ``kind`` that would be taken are those that the engine would choose.
    """
    nodes = feasible.places.nodes[rows]
    own = columns(world.ledger.fleet).of(kind)[nodes]
    before = np.maximum(world.ledger.milli[own], 0)
    after = before.copy()
    for i, ask in enumerate(feasible.alternative.asks):
        if ask.kind == kind and is_accelerator(kind):
            chosen, share = taken(feasible, i, rows, world)
            if ask.count == 1:
                after -= (own == chosen) * share
            else:
                after -= ((own[:, :, None] == chosen[:, None, :]) * share[:, None, :]).sum(axis=2)
    cores = free(world, nodes, "cpu").sum(axis=1)
    asked = sum(ask.count * ask.milli for ask in feasible.alternative.asks if ask.kind == "cpu")
    return Room(before, np.maximum(after, 0), cores, np.maximum(cores - asked, 0))


def taken(feasible: FeasibleSet, ask: int, rows: Rows, world: ReadOnlyWorld) -> tuple[Rows, Rows]:
    """Which device rows the engine would take for the ask number ``ask`` at each place, and how much of each: the same
    choice as :func:`scheduler.core.resources.match.grant` makes, for many places at once."""
    asked = feasible.alternative.asks[ask]
    at, need = feasible.rows[ask][rows], feasible.needs[ask][rows]
    facts = columns(world.ledger.fleet)
    milli = world.ledger.milli[at]
    fits = (milli >= need) & (world.ledger.memory[at] >= asked.memory_bytes)
    spare = np.where(fits, milli + np.where(facts.warned[at], _WARNED, 0), _NOT_FREE)
    if asked.count == 1:
        tightest = np.arange(len(rows)), spare.argmin(axis=1)
        return at[tightest][:, None], need[tightest][:, None]
    sound = fits & ~facts.warned[at]
    group = _smallest(np.where(sound, facts.group[at], -1), asked.count)
    is_apart = (facts.group[at] != group) & (group >= 0)
    numa = _smallest(np.where(sound & ~is_apart, facts.numa[at], -1), asked.count)
    spare += np.where(fits & is_apart, _APART, 0)
    spare += np.where(fits & (facts.numa[at] != numa) & (numa >= 0), _ABROAD, 0)
    order = spare.argsort(axis=1, kind="stable")[:, : asked.count]
    return np.take_along_axis(at, order, axis=1), np.take_along_axis(need, order, axis=1)


def _smallest(places: Rows, count: int) -> Rows:
    """Line by line, of the places (0 and above) that come ``count`` times or more the one that comes least often, the
    lowest of equals; -1 where there is none. The answer has one column."""
    home, fewest = np.full((len(places), 1), -1), np.full((len(places), 1), _NOT_FREE)
    for code in np.unique(places[places >= 0]).tolist():
        size = (places == code).sum(axis=1, keepdims=True)
        better = (size >= count) & (size < fewest)
        home[better], fewest[better] = code, size[better]
    return home


def asked_kinds(feasible: FeasibleSet) -> tuple[str, ...]:
    """The kinds of accelerators that a request names, in order."""
    return _without_cpu(ask.kind for ask in feasible.alternative.asks)


def accelerators(world: ReadOnlyWorld) -> tuple[str, ...]:
    """The kinds of accelerators there are, in order."""
    return _without_cpu(columns(world.ledger.fleet).kinds)


def _without_cpu(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({kind for kind in kinds if is_accelerator(kind)}))
