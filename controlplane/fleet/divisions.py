"""Converts device partitions between what agents report and what the scheduler uses.

If a driver does not report the slots of its partitions, they are numbered in the order of their uuids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import IntegrityError

from agents.protocol import Division
from controlplane.fleet.models import Device
from scheduler.core.model.partitions import Layout, Partition, table_of, tables
from scheduler.core.model.types import Grant
from scheduler.core.resources.match import SMALLEST

Stored = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition on a device: the number of slots it covers, and its uuid (empty if the agent creates it)."""

    part: Partition
    size: int
    uuid: str = ""


def there(division: Division) -> tuple[PartitionPlace, ...]:
    """Return the existing partitions of a device."""
    if any(one.start is None for one in division.made):
        in_order = sorted(division.made, key=lambda one: one.uuid)
        return tuple(PartitionPlace(Partition(number, one.profile), 1, one.uuid) for number, one in enumerate(in_order))
    return tuple(PartitionPlace(Partition(one.start or 0, one.profile), one.size, one.uuid) for one in division.made)


def for_engine(vendor: str, model: str, stored: Stored, *, may_divide: bool) -> tuple[str, Layout | None, bool]:
    """Return partition table, existing partitions, and whether the device can be allocated as a whole.

    A device is repartitioned on demand only if its agent supports it, its pools allow it, and nobody else partitioned
    it.
    """
    table, division = table_of(vendor, model), msgspec.convert(stored, Division)
    name = table.name if table else ""
    if division.makes and may_divide and not division.made:
        return name, None, division.whole
    return name, tuple(place.part for place in there(division)), False


def places(grants: Iterable[Grant]) -> dict[tuple[str, Partition], PartitionPlace]:
    """Return the location of each granted partition, by device and part. Raises IntegrityError for one that is gone."""
    wanted = {(grant.device, grant.part) for grant in grants if grant.part is not None}
    if not wanted:
        return {}
    devices = {str(device.id): device for device in Device.objects.filter(id__in={device for device, _ in wanted})}
    return {(device, part): _place(devices.get(device), part) for device, part in wanted}


def _place(device: Device | None, part: Partition) -> PartitionPlace:
    if device is None or device.division is None:
        raise IntegrityError(f"device {device} is not divided any more: it has no {part.profile}")
    division = msgspec.convert(device.division, Division)
    found = next((place for place in there(division) if place.part == part), None)
    if found is not None:
        return found
    table = table_of(device.vendor, device.model)
    if division.made or not division.makes or table is None:
        raise IntegrityError(f"device {device} was divided anew: it has no {part.profile} at slot {part.start}")
    return PartitionPlace(part, table.profiles[part.profile].size or 1)


def profiles_of(table: str) -> set[str]:
    """Return the profiles that this table offers, and the word for the smallest of them."""
    return {SMALLEST, *tables()[table].profiles} if table in tables() else set()
