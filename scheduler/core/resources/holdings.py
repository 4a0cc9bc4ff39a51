"""What each project holds of each sort of device, as quotas count it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.core.model.types import Device, Grant, Quota
from scheduler.core.resources.charges import charge


class Holdings:
    """The holdings of each project by kind and model of device, in integers, so that the same grants give the same
    sums."""

    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[str, str, int], int]] = {}
        # By project and kind, for quotas without a model.
        self._by_kind: dict[tuple[str, str], int] = {}

    def count(self, project: str, grants: Iterable[Grant], devices: Mapping[str, Device], sign: int) -> None:
        """Add (``sign`` 1) or subtract (-1) ``grants``; unknown devices count nothing."""
        mine = self._of.setdefault(project, {})
        for one in grants:
            device = devices.get(one.device)
            if device is not None:
                key = (device.kind, device.model, round(charge(device) * 1000))
                mine[key] = mine.get(key, 0) + sign * one.milli
                whole = (project, device.kind)
                self._by_kind[whole] = self._by_kind.get(whole, 0) + sign * one.milli

    def of(self, right: Quota) -> int:
        """Return what the project of a quota holds of its devices, in the unit of the quota."""
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
    """Return what a share of a device counts against a quota; nothing if it does not cover the device."""
    if not right.covers(device.kind, device.model):
        return 0
    return milli * round(charge(device) * 1000) // 1000 if right.normalised else milli
