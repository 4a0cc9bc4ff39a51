"""The machines as arrays: one row per device, the devices of a node in adjoining rows, nodes in the order of names.

Nodes that are alike in all that a request can ask about form a *class*; what holds for one of them holds for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.core.charges import charge
from scheduler.core.speed import worth
from scheduler.core.types import Device, Mode, Node

Rows = npt.NDArray[np.int64]
Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Alike:
    """A class of nodes. ``sample`` is the first of them; ``nodes`` their rows, ascending."""

    sample: Node
    nodes: Rows


class Fleet:
    """Static facts about devices, by row. It is made anew when a node or device changes, never altered."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: list[Node] = sorted(nodes, key=lambda one: (one.name, one.id))
        self.node_row: dict[str, int] = {node.id: i for i, node in enumerate(self.nodes)}
        self.devices: list[Device] = []
        self.owner: list[int] = []
        first = []
        for i, node in enumerate(self.nodes):
            first.append(len(self.devices))
            self.devices += sorted(node.devices, key=lambda one: (one.index, one.id))
            self.owner += [i] * len(node.devices)
        self.first: Rows = np.array(first, dtype=np.int64)
        self.row: dict[str, int] = {device.id: i for i, device in enumerate(self.devices)}
        self.kinds: dict[str, str] = {device.id: device.kind for device in self.devices}
        self.capacity: Rows = np.array([device.capacity_milli for device in self.devices], dtype=np.int64)
        self.memory: Rows = np.array([device.memory_bytes for device in self.devices], dtype=np.int64)
        self.is_exclusive: npt.NDArray[np.bool_] = np.array(
            [device.mode is Mode.EXCLUSIVE or bool(device.partitions) for device in self.devices], dtype=np.bool_
        )
        # Worth of a thousandth of each device; the last one stands for "no such device".
        self.worth: Rates = np.array([worth(device, 1) for device in self.devices] + [0.0])
        # What a project is charged for a second of a whole device.
        self.charge: Rates = np.array([charge(device) for device in self.devices] + [0.0])
        most = max((len(node.devices) for node in self.nodes), default=0)
        counts = np.array([len(node.devices) for node in self.nodes], dtype=np.int64)[:, None]
        steps = np.arange(most)[None, :]
        # The device rows of each node row; -1 fills up.
        self.rows_of: Rows = np.where(steps < counts, self.first[:, None] + steps, -1)
        # Devices of one sort are alike in all that a request can ask about, but for which one each is.
        codes: dict[object, int] = {}
        self.sort: list[int] = [codes.setdefault(_sort(device), len(codes)) for device in self.devices]
        self.accelerators = sum(device.kind != "cpu" for device in self.devices)
        self.classes = self._classes()

    def kind_of(self, device: str) -> str:
        """The kind of a device; empty if it is not known."""
        return self.kinds.get(device, "")

    def at(self, node_row: int) -> list[Device]:
        """The devices of a node in the order of their rows."""
        begin = int(self.first[node_row])
        return self.devices[begin : begin + len(self.nodes[node_row].devices)]

    def _classes(self) -> list[Alike]:
        members: dict[object, list[int]] = {}
        for i, node in enumerate(self.nodes):
            begin = int(self.first[i])
            devices = tuple(self.sort[begin : begin + len(node.devices)])
            key = (node.state, node.pools, node.runs_images, tuple(sorted(node.labels.items())), devices)
            members.setdefault(key, []).append(i)
        return [Alike(self.nodes[rows[0]], np.array(rows, dtype=np.int64)) for rows in members.values()]


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
        tuple(sorted(device.features.items())) if device.features else (),
    )
