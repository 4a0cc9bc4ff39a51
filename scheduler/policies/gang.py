"""Gang: all ranks of a stage run on one device model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.hooks import Admit
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Device, Node, Stage


@dataclass(frozen=True)
class Gang(Admit):
    """Collective communication is as fast as its slowest rank and uses one backend: nodes are grouped by the vendor and
    model of the matching devices. That a gang starts whole or not at all is ensured by the engine itself."""

    def groups(self, stage: Stage, nodes: Sequence[tuple[Node, tuple[Device, ...]]]) -> list[list[int]]:
        sorts: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for position, (_, devices) in enumerate(nodes):
            sort = tuple(sorted({(device.vendor, device.model) for device in devices if is_accelerator(device.kind)}))
            sorts.setdefault(sort, []).append(position)
        return [sorts[sort] for sort in sorted(sorts)]
