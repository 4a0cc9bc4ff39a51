"""The ledger: free capacity of every device during planning, with claim, release, checkpoint and rollback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from scheduler.core.model.partitions import Layout, Partition, can_add
from scheduler.core.model.types import Device, Grant
from scheduler.core.resources.fleet import Fleet, Rates, Rows


class FreeDevices(Protocol):
    """The read-only part of a :class:`Ledger`. Its arrays must not be written."""

    @property
    def fleet(self) -> Fleet: ...
    @property
    def devices(self) -> Mapping[str, Device]: ...
    @property
    def milli(self) -> Rows: ...
    @property
    def memory(self) -> Rows: ...
    def free(self, device: str) -> tuple[int, int]: ...
    def layout(self, device: str) -> Layout: ...
    def worth_left(self, nodes: Rows) -> Rates: ...
    def has(self, grants: Iterable[Grant]) -> bool: ...


class Ledger:
    """What is free of each device now. A claim beyond that raises ``ValueError``.

    ``milli`` and ``memory`` are arrays by device row; :meth:`free` returns the values of one device. ``touched`` has
    the node row of every change in order, so that callers can find which nodes changed since they last looked.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.devices: dict[str, Device] = fleet.by_id
        # One row more than there are devices: row -1 stands for "no such device" and has no capacity.
        self.milli: Rows = np.append(fleet.capacity, -1)
        self.memory: Rows = np.append(fleet.memory, -1)
        self.touched: list[int] = []
        self._milli: list[int] = fleet.capacity.tolist()
        self._memory: list[int] = fleet.memory.tolist()
        self._row, self._owner = fleet.row, fleet.owner
        self._parts: dict[int, list[Partition]] = {}
        self._log: list[tuple[int, int, int, Partition | None]] = []

    def follow(self, node_row: int) -> None:
        """Update a node from the fleet. Nothing on it may be claimed."""
        fleet = self.fleet
        more = len(fleet.devices) - len(self._milli)
        if more:
            self.milli = np.append(self.milli[:-1], [*[0] * more, -1])
            self.memory = np.append(self.memory[:-1], [*[0] * more, -1])
            self._milli += [0] * more
            self._memory += [0] * more
        for row in fleet.rows_at(node_row):
            device = fleet.devices[row]
            is_here = fleet.row.get(device.id) == row
            self._milli[row] = self.milli[row] = device.capacity_milli if is_here else 0
            self._memory[row] = self.memory[row] = device.memory_bytes if is_here else 0
            self._parts.pop(row, None)
        self.touched.append(node_row)

    def free(self, device: str) -> tuple[int, int]:
        """Free milli and bytes."""
        row = self._row[device]
        return self._milli[row], self._memory[row]

    def layout(self, device: str) -> Layout:
        """Return the present partitioning of the device."""
        return tuple(self._parts.get(self._row[device], ()))

    def worth_left(self, nodes: Rows) -> Rates:
        """Return the value of the free capacity on each of these node rows."""
        at = self.fleet.rows_of[nodes]
        left: Rates = (np.maximum(self.milli[at], 0) * self.fleet.worth[at]).sum(axis=1)
        return left

    def has(self, grants: Iterable[Grant]) -> bool:
        """Whether each of ``grants`` is free; they must name different devices."""
        for one in grants:
            row = self._row.get(one.device)
            if row is None or one.milli > self._milli[row] or one.memory_bytes > self._memory[row]:
                return False
            if one.part is not None and not self._can_divide(row, one.part):
                return False
        return True

    def claim(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            row = self._row[grant.device]
            if grant.milli > self._milli[row] or grant.memory_bytes > self._memory[row]:
                raise ValueError(
                    f"device {grant.device} has {self._milli[row]} milli and {self._memory[row]} bytes free; "
                    f"{grant.milli} milli and {grant.memory_bytes} bytes were claimed"
                )
            if grant.part is not None and not self._can_divide(row, grant.part):
                raise ValueError(
                    f"device {grant.device} is divided into {list(self.layout(grant.device))}; there is no place for "
                    f"{grant.part}"
                )
            self._move(row, -grant.milli, -grant.memory_bytes, grant.part)

    def occupy(self, grants: Iterable[Grant]) -> None:
        """Enter existing holdings, even beyond the capacity; devices no longer reported are ignored."""
        for grant in grants:
            row = self._row.get(grant.device)
            if row is not None:
                self._move(row, -grant.milli, -grant.memory_bytes, grant.part)

    def fill(self, held: Sequence[tuple[int, Grant]]) -> None:
        """Enter all that is really held at once, with the row of each, into an empty ledger."""
        rows = np.array([row for row, _ in held], dtype=np.int64)
        size = len(self.fleet.devices)
        self.milli[:-1] -= np.bincount(rows, [one.milli for _, one in held], size).astype(np.int64)
        self.memory[:-1] -= np.bincount(rows, [one.memory_bytes for _, one in held], size).astype(np.int64)
        self._milli, self._memory = self.milli[:-1].tolist(), self.memory[:-1].tolist()
        for row, one in held:
            if one.part is not None:
                self._divide(row, one.part, is_added=True)
        self.touched += sorted({self._owner[row] for row, _ in held})

    def release(self, grants: Iterable[Grant]) -> None:
        """Release grants; devices no longer reported are ignored."""
        for grant in grants:
            row = self._row.get(grant.device)
            if row is not None:
                self._move(row, grant.milli, grant.memory_bytes, grant.part)

    def hold(self, grants: Iterable[Grant]) -> None:
        """Claim the free part of ``grants``, so that no later stage takes it while the rest is being freed."""
        for grant in grants:
            row = self._row[grant.device]
            milli = max(0, min(grant.milli, self._milli[row]))
            memory = max(0, min(grant.memory_bytes, self._memory[row]))
            part = grant.part if grant.part and milli > 0 and self._can_divide(row, grant.part) else None
            self._move(row, -milli, -memory, part)

    def close(self, device: str) -> None:
        """Claim all that is free of a device."""
        row = self._row[device]
        self._move(row, -max(0, self._milli[row]), -max(0, self._memory[row]))

    def checkpoint(self) -> int:
        """Return a mark for :meth:`rollback`."""
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Undo everything since ``mark``."""
        while len(self._log) > mark:
            row, milli, memory, part = self._log.pop()
            self._write(row, -milli, -memory)
            if part is not None:
                self._divide(row, part, is_added=milli > 0)

    def settle(self) -> None:
        """Make everything so far permanent; :meth:`rollback` cannot go back behind it."""
        self._log.clear()

    def _can_divide(self, row: int, part: Partition) -> bool:
        device = self.fleet.devices[row]
        return can_add(device.partitions, device.made, tuple(self._parts.get(row, ())), part)

    def _divide(self, row: int, part: Partition, *, is_added: bool) -> None:
        parts = self._parts.setdefault(row, [])
        if is_added:
            parts.append(part)
        elif part in parts:
            parts.remove(part)

    def _move(self, row: int, milli: int, memory: int, part: Partition | None = None) -> None:
        self._write(row, milli, memory)
        if part is not None:
            self._divide(row, part, is_added=milli < 0)
        self._log.append((row, milli, memory, part))

    def _write(self, row: int, milli: int, memory: int) -> None:
        self._milli[row] += milli
        self._memory[row] += memory
        self.milli[row] = self._milli[row]
        self.memory[row] = self._memory[row]
        self.touched.append(self._owner[row])
