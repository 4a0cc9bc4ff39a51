"""What each project holds of each sort of device, as quotas count it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.core.model.types import Device, Grant, Quota
from scheduler.core.resources.charges import charge


class Holdings:
    """By project and sort of device what it holds, in whole numbers: the same grants give the same sums."""

    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[str, str, int], int]] = {}
        # By project and kind, for the rights that ask for no more.
        self._by_kind: dict[tuple[str, str], int] = {}

    def count(self, project: str, grants: Iterable[Grant], devices: Mapping[str, Device], sign: int) -> None:
        """Count ``grants`` once more (``sign`` 1) or once less (-1); devices that nobody knows count nothing."""
        mine = self._of.setdefault(project, {})
        for one in grants:
            device = devices.get(one.device)
            if device is not None:
                key = (device.kind, device.model, round(charge(device) * 1000))
                mine[key] = mine.get(key, 0) + sign * one.milli
                whole = (project, device.kind)
                self._by_kind[whole] = self._by_kind.get(whole, 0) + sign * one.milli

    def of(self, right: Quota) -> int:
        """What the project of a right holds of what it covers, in the unit of the right."""
        if not right.model and not right.normalised:
            return self._by_kind.get((right.project, right.kind), 0)
        held = 0
        for (kind, model, worth), milli in self._of.get(right.project, {}).items():
            if milli and right.covers(kind, model):
                held += milli * worth // 1000 if right.normalised else milli
        return held

    def copy(self) -> Holdings:
        found = Holdings()
        found._of = {project: dict(mine) for project, mine in self._of.items()}
        found._by_kind = dict(self._by_kind)
        return found


def amount(right: Quota, device: Device, milli: int) -> int:
    """What a share of a device counts against a right; nothing where that does not cover it."""
    if not right.covers(device.kind, device.model):
        return 0
    return milli * round(charge(device) * 1000) // 1000 if right.normalised else milli
