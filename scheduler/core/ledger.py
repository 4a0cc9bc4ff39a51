"""Free capacity while one cycle thinks: claim, release, hold, checkpoint, rollback."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.types import Device, Grant, Snapshot


class Ledger:
    """What is free of each device now. A claim never leaves less than nothing: it raises ``ValueError`` instead.

    ``version`` counts the changes of each node, so that a caller can keep what it worked out about the others.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.devices: dict[str, Device] = {}
        self.milli: dict[str, int] = {}
        self.memory: dict[str, int] = {}
        self.version: dict[str, int] = {}
        for node in snapshot.nodes:
            self.version[node.id] = 0
            for device in node.devices:
                self.devices[device.id] = device
                self.milli[device.id] = device.capacity_milli
                self.memory[device.id] = device.memory_bytes
        for stage in snapshot.running:
            for rank in stage.placement.grants:
                for grant in rank:
                    if grant.device in self.milli:  # a device that its node no longer reports has nothing to give
                        self.milli[grant.device] -= grant.milli
                        self.memory[grant.device] -= grant.memory_bytes
        self._log: list[tuple[str, int, int]] = []

    def free(self, device: str) -> tuple[int, int]:
        """Free milli and bytes."""
        return self.milli[device], self.memory[device]

    def claim(self, grants: Iterable[Grant]) -> None:
        grants = tuple(grants)
        for grant in grants:
            if grant.milli > self.milli[grant.device] or grant.memory_bytes > self.memory[grant.device]:
                raise ValueError(
                    f"device {grant.device} has {self.milli[grant.device]} milli and {self.memory[grant.device]} bytes "
                    f"free; {grant.milli} milli and {grant.memory_bytes} bytes were claimed"
                )
            self._move(grant.device, -grant.milli, -grant.memory_bytes)

    def release(self, grants: Iterable[Grant]) -> None:
        """Give back; a device that is no longer reported is passed over."""
        for grant in grants:
            if grant.device in self.milli:
                self._move(grant.device, grant.milli, grant.memory_bytes)

    def hold(self, grants: Iterable[Grant]) -> None:
        """Take what is free of ``grants``, so that nobody behind takes it while the rest is being freed."""
        for grant in grants:
            milli = max(0, min(grant.milli, self.milli[grant.device]))
            memory = max(0, min(grant.memory_bytes, self.memory[grant.device]))
            self._move(grant.device, -milli, -memory)

    def close(self, device: str) -> None:
        """Take all that is free of a device."""
        self._move(device, -max(0, self.milli[device]), -max(0, self.memory[device]))

    def checkpoint(self) -> int:
        """A mark to come back to."""
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Undo everything since ``mark``."""
        while len(self._log) > mark:
            device, milli, memory = self._log.pop()
            self.milli[device] -= milli
            self.memory[device] -= memory
            self.version[self.devices[device].node] += 1

    def _move(self, device: str, milli: int, memory: int) -> None:
        self.milli[device] += milli
        self.memory[device] += memory
        self.version[self.devices[device].node] += 1
        self._log.append((device, milli, memory))
