"""The machines as arrays: one row per device, the devices of a node in adjoining rows.

Nodes that are alike in all that a request can ask about form a *class*; what holds for one of them holds for all. Nodes
have an order, that of their names: :attr:`Fleet.rank`. Their rows follow it at first, later ones are added at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Device, Mode, Node
from scheduler.core.resources.charges import charge
from scheduler.core.resources.match import label_words
from scheduler.core.resources.speed import worth

Rows = npt.NDArray[np.int64]
Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NodeClass:
    """A class of nodes. ``sample`` is the first of them; ``nodes`` their rows in the order of names. ``code`` names the
    class for as long as the fleet lives, ``kit`` all classes with the same devices and the same container engine.
    ``words`` are the labels by which they may be wanted."""

    sample: Node
    nodes: Rows
    code: int
    kit: int
    words: frozenset[str]


class Fleet:
    """Facts about devices, by row. :meth:`put` and :meth:`take_out` change one node. ``changes`` has the row of each
    changed node, in order, so that a reader that remembers its length can keep cached values of the others.

    The rows of a removed node stay, in no pool, until it returns with as many devices.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: list[Node] = sorted(nodes, key=_order)
        self.node_row: dict[str, int] = {node.id: i for i, node in enumerate(self.nodes)}
        self.rank: Rows = np.arange(len(self.nodes))
        self.changes: list[int] = []
        self.devices: list[Device] = []
        self.owner: list[int] = []
        first = []
        for i, node in enumerate(self.nodes):
            first.append(len(self.devices))
            self.devices += _in_order(node)
            self.owner += [i] * len(node.devices)
        self.first: Rows = np.array(first, dtype=np.int64)
        self.row: dict[str, int] = {device.id: i for i, device in enumerate(self.devices)}
        self.by_id: dict[str, Device] = {device.id: device for device in self.devices}
        self.kinds: dict[str, str] = {device.id: device.kind for device in self.devices}
        self.capacity: Rows = np.array([device.capacity_milli for device in self.devices], dtype=np.int64)
        self.memory: Rows = np.array([device.memory_bytes for device in self.devices], dtype=np.int64)
        self.is_exclusive: npt.NDArray[np.bool_] = np.array(
            [_is_exclusive(device) for device in self.devices], dtype=np.bool_
        )
        # Worth of a thousandth of each device; the last one stands for "no such device".
        self.worth: Rates = np.array([worth(device, 1) for device in self.devices] + [0.0])
        # The charge of a second of a whole device.
        self.charge: Rates = np.array([charge(device) for device in self.devices] + [0.0])
        most = max((len(node.devices) for node in self.nodes), default=0)
        counts = np.array([len(node.devices) for node in self.nodes], dtype=np.int64)[:, None]
        steps = np.arange(most)[None, :]
        # The device rows of each node row; -1 fills up.
        self.rows_of: Rows = np.where(steps < counts, self.first[:, None] + steps, -1)
        # Devices of one sort are alike in all that a request can ask about, but for which one each is.
        self._sorts: dict[Hashable, int] = {}
        self.sort: list[int] = [self._sort(device) for device in self.devices]
        self.accelerators = sum(is_accelerator(device.kind) for device in self.devices)
        self._codes: dict[Hashable, int] = {}
        self._kits: dict[Hashable, int] = {}
        self._classes: dict[int, NodeClass] = {}
        self._empty: dict[tuple[str, str, int], int] = {}
        self.class_of: list[int | None] = []
        # The rows of the nodes that are here, by id and by name.
        self._named: dict[str, set[int]] = {}
        members: dict[tuple[int, int], list[int]] = {}
        for i, node in enumerate(self.nodes):
            begin = first[i]
            code = self._code(node, self.sort[begin : begin + len(node.devices)])
            self.class_of.append(code[0])
            self._name(i)
            members.setdefault(code, []).append(i)
        for (code_, kit), rows in members.items():
            sample = self.nodes[rows[0]]
            self._classes[code_] = NodeClass(sample, np.array(rows, dtype=np.int64), code_, kit, label_words(sample))
        self._count_in: dict[str, int] = {}
        self._in_pool: dict[str, dict[int, list[tuple[int, NodeClass]]]] = {}
        self._in_order: list[NodeClass] | None = list(self._classes.values())

    @property
    def classes(self) -> list[NodeClass]:
        """All classes, that of the first node first."""
        if self._in_order is None:
            self._in_order = sorted(self._classes.values(), key=lambda one: int(self.rank[one.nodes[0]]))
        return self._in_order

    def sample(self, code: int) -> Node:
        """A node of a class."""
        return self._classes[code].sample

    def in_pool(self, pool: str) -> dict[int, list[tuple[int, NodeClass]]]:
        """The classes of a pool by their kit, each with its place among all classes."""
        known = self._in_pool.get(pool)
        if known is None:
            known = self._in_pool[pool] = {}
            for i, one in enumerate(self.classes):
                if pool in one.sample.pools:
                    known.setdefault(one.kit, []).append((i, one))
        return known

    def count_in(self, pool: str) -> int:
        """How many nodes a pool has."""
        known = self._count_in.get(pool)
        if known is None:
            known = self._count_in[pool] = sum(
                len(one.nodes) for classes in self.in_pool(pool).values() for _, one in classes
            )
        return known

    def named(self, words: Iterable[str]) -> set[int]:
        """The rows of the nodes with one of these ids or names."""
        return {row for word in words for row in self._named.get(word, ())}

    def by_class(self, node_rows: Iterable[int]) -> dict[int, set[int]]:
        """These rows, of nodes that are here, by the code of their class."""
        found: dict[int, set[int]] = {}
        for row in node_rows:
            code = self.class_of[row]
            assert code is not None, "a node that is here has a class"
            found.setdefault(code, set()).add(row)
        return found

    def kit_of(self, node_row: int) -> int | None:
        """The kit of a node that is here."""
        code = self.class_of[node_row]
        return None if code is None else self._classes[code].kit

    def at(self, node_row: int) -> list[Device]:
        """The devices of a node in the order of their rows."""
        begin = int(self.first[node_row])
        return self.devices[begin : begin + len(self.nodes[node_row].devices)]

    def rows_at(self, node_row: int) -> range:
        """The device rows of a node, of one that left too."""
        begin = int(self.first[node_row])
        return range(begin, begin + len(self.nodes[node_row].devices))

    def is_like_before(self, node: Node) -> bool:
        """Whether the node is here, and is now like it was in all that a request can ask about."""
        row = self.node_row.get(node.id)
        if row is None or not self._fits_in(row, node):
            return False
        return self._code(node, [self._sort(device) for device in _in_order(node)])[0] == self.class_of[row]

    # -- what changes -----------------------------------------------------------------------------------------------

    def put(self, node: Node) -> None:
        """Write a node again: in its own rows if its name and its devices are the same, else in others."""
        row = self.node_row.get(node.id)
        if row is not None and not self._fits_in(row, node):
            self.take_out(node.id)
            row = None
        if row is None:
            row = self._empty.pop((node.id, node.name, len(node.devices)), None)
            if row is None:
                row = self._append(node)
        self._write(row, node)

    def take_out(self, node_id: str) -> None:
        """Forget a node."""
        row = self.node_row.pop(node_id)
        self._leave_class(row)
        for device in self.at(row):
            self.row.pop(device.id, None)
            self.kinds.pop(device.id, None)
            self.by_id.pop(device.id, None)
            self.accelerators -= is_accelerator(device.kind)
        self.rows_of[row] = -1
        node = self.nodes[row]
        self._empty[node_id, node.name, len(node.devices)] = row
        self.nodes[row] = replace(node, pools=())
        self.changes.append(row)

    def _fits_in(self, row: int, node: Node) -> bool:
        known = self.nodes[row]
        return known.name == node.name and [one.id for one in self.at(row)] == [one.id for one in _in_order(node)]

    def _append(self, node: Node) -> int:
        """Rows at the end, which :meth:`_write` fills, and the rank that its name gives it."""
        row, begin, size = len(self.nodes), len(self.devices), len(node.devices)
        before = sum(_order(other) < _order(node) for other in self.nodes)
        self.rank = np.append(self.rank + (self.rank >= before), before)
        self.nodes.append(node)
        self.class_of.append(None)
        self.first = np.append(self.first, begin)
        self.devices += node.devices
        self.owner += [row] * size
        self.sort += [0] * size
        self.capacity = np.append(self.capacity, np.zeros(size, dtype=np.int64))
        self.memory = np.append(self.memory, np.zeros(size, dtype=np.int64))
        self.is_exclusive = np.append(self.is_exclusive, np.zeros(size, dtype=np.bool_))
        self.worth = np.append(self.worth, np.zeros(size))
        self.charge = np.append(self.charge, np.zeros(size))
        width = max(self.rows_of.shape[1], size)
        rows_of = np.full((row + 1, width), -1, dtype=np.int64)
        rows_of[:row, : self.rows_of.shape[1]] = self.rows_of
        self.rows_of = rows_of
        return row

    def _write(self, row: int, node: Node) -> None:
        begin, is_new = int(self.first[row]), node.id not in self.node_row
        self._leave_class(row)
        for at, device in enumerate(_in_order(node), begin):
            self.accelerators += is_accelerator(device.kind) - (not is_new and is_accelerator(self.devices[at].kind))
            self.devices[at] = self.by_id[device.id] = device
            self.row[device.id], self.kinds[device.id] = at, device.kind
            self.capacity[at], self.memory[at] = device.capacity_milli, device.memory_bytes
            self.is_exclusive[at] = _is_exclusive(device)
            self.worth[at], self.charge[at] = worth(device, 1), charge(device)
            self.sort[at] = self._sort(device)
        size = len(node.devices)
        self.rows_of[row, :size] = np.arange(begin, begin + size)
        self.nodes[row], self.node_row[node.id] = node, row
        self._enter_class(row, *self._code(node, self.sort[begin : begin + size]))
        self.changes.append(row)

    def _enter_class(self, row: int, code: int, kit: int) -> None:
        known = self._classes.get(code)
        rows = np.append(known.nodes, row) if known else np.array([row], dtype=np.int64)
        rows = rows[np.argsort(self.rank[rows])]
        words = known.words if known else label_words(self.nodes[row])
        self._classes[code] = NodeClass(self.nodes[int(rows[0])], rows, code, kit, words)
        self.class_of[row] = code
        self._name(row)
        self._forget_order()

    def _leave_class(self, row: int) -> None:
        code = self.class_of[row]
        if code is None:
            return
        known = self._classes.pop(code)
        rows = known.nodes[known.nodes != row]
        if len(rows):
            self._classes[code] = NodeClass(self.nodes[int(rows[0])], rows, code, known.kit, known.words)
        self.class_of[row] = None
        for name in {self.nodes[row].id, self.nodes[row].name}:
            self._named[name].discard(row)
            if not self._named[name]:
                del self._named[name]
        self._forget_order()

    def _name(self, row: int) -> None:
        for name in (self.nodes[row].id, self.nodes[row].name):
            self._named.setdefault(name, set()).add(row)

    def _forget_order(self) -> None:
        self._in_order = None
        self._in_pool.clear()
        self._count_in.clear()

    def _code(self, node: Node, sorts: list[int]) -> tuple[int, int]:
        """The class of a node with devices of these sorts, and its kit."""
        kit = self._kits.setdefault((node.runs_images, *sorts), len(self._kits))
        key = (node.state, node.pools, tuple(sorted(node.labels.items())), node.mounts, kit)
        return self._codes.setdefault(key, len(self._codes)), kit

    def _sort(self, device: Device) -> int:
        return self._sorts.setdefault(_sort(device), len(self._sorts))


def _order(node: Node) -> tuple[str, str]:
    return node.name, node.id


def _in_order(node: Node) -> list[Device]:
    return sorted(node.devices, key=lambda one: (one.index, one.id))


def _is_exclusive(device: Device) -> bool:
    return device.mode is Mode.EXCLUSIVE or bool(device.partitions)


def _sort(device: Device) -> tuple[object, ...]:
    """All that a request can tell devices apart by, except which one it is."""
    return (
        device.kind,
        device.vendor,
        device.model,
        device.memory_bytes,
        device.capacity_milli,
        device.mode,
        device.health,
        device.numa,
        device.partitions,
        device.made,
        device.whole,
        device.sharing,
        tuple(sorted(device.features.items())) if device.features else (),
    )
