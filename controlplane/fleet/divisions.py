"""How devices are divided, as their agents told it, in the engine's terms and back.

Where a driver does not tell in which slots its partitions lie, they are numbered in the order of their uuids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import IntegrityError

from agents.protocol import Division
from controlplane.fleet.models import Device
from scheduler.core.model.partitions import Layout, Part, table_of, tables
from scheduler.core.model.types import Grant
from scheduler.core.resources.match import SMALLEST

Stored = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition of a device is: how many slots it covers, and its uuid (empty where its agent makes it)."""

    part: Part
    size: int
    uuid: str = ""


def there(division: Division) -> tuple[Place, ...]:
    """The partitions that a device has."""
    if any(one.start is None for one in division.made):
        in_order = sorted(division.made, key=lambda one: one.uuid)
        return tuple(Place(Part(number, one.profile), 1, one.uuid) for number, one in enumerate(in_order))
    return tuple(Place(Part(one.start or 0, one.profile), one.size, one.uuid) for one in division.made)


def for_engine(vendor: str, model: str, stored: Stored, *, may_divide: bool) -> tuple[str, Layout | None, bool]:
    """The table by which a device is divided, the partitions that are given where nobody divides it further, and
    whether it can be given as a whole.

    It is divided as asked only where its agent does so and its pools allow it, and while nobody else divided it.
    """
    table, division = table_of(vendor, model), msgspec.convert(stored, Division)
    name = table.name if table else ""
    if division.makes and may_divide and not division.made:
        return name, None, division.whole
    return name, tuple(place.part for place in there(division)), False


def places(grants: Iterable[Grant]) -> dict[tuple[str, Part], Place]:
    """Where the partitions among these grants are, by device and part. Raises IntegrityError for one that is gone."""
    wanted = {(grant.device, grant.part) for grant in grants if grant.part is not None}
    if not wanted:
        return {}
    devices = {str(device.id): device for device in Device.objects.filter(id__in={device for device, _ in wanted})}
    return {(device, part): _place(devices.get(device), part) for device, part in wanted}


def _place(device: Device | None, part: Part) -> Place:
    if device is None or device.division is None:
        raise IntegrityError(f"device {device} is not divided any more: it has no {part.profile}")
    division = msgspec.convert(device.division, Division)
    found = next((place for place in there(division) if place.part == part), None)
    if found is not None:
        return found
    table = table_of(device.vendor, device.model)
    if division.made or not division.makes or table is None:
        raise IntegrityError(f"device {device} was divided anew: it has no {part.profile} at slot {part.start}")
    return Place(part, table.profiles[part.profile].size or 1)


def profiles_of(table: str) -> set[str]:
    """What a device can be divided into by this table, and the word for the smallest of them."""
    return {SMALLEST, *tables()[table].profiles} if table in tables() else set()
