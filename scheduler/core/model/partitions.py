"""Partitions of a device: the layouts that its hardware allows, and where one more fits (MIG, vNPU).

Tables and their sources are in ``partitions.toml``. A layout is the present partitioning of a device; a device with an
empty layout is whole. If partitions were created outside of Switchyard, only those are used, and the device is not
repartitioned.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

GIB = 2**30
MANY = 64


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """A partition profile. It has ``milli`` of the compute, ``memory_bytes`` by its name, and takes ``memory_milli`` of
    the device's memory. It covers ``size`` slots from one of ``starts``, and ``uses`` amounts of other resources. A
    device may have at most ``most`` of it."""

    name: str
    milli: int
    memory_bytes: int
    memory_milli: int
    size: int = 0
    starts: tuple[int, ...] = ()
    uses: Mapping[str, int] = field(default_factory=dict)
    most: int = MANY


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition of a device: its first slot, or its number where there are no slots."""

    start: int
    profile: str


Layout = tuple[Partition, ...]
WHOLE: Layout = ()


@dataclass(frozen=True)
class PartitionTable:
    """How the devices of a model, all of one ``kind``, can be partitioned: into consecutive ``slots``, or by the
    amounts of each resource."""

    name: str
    kind: str
    match: str
    source: str
    profiles: Mapping[str, PartitionProfile]
    slots: int = 0
    has: Mapping[str, int] = field(default_factory=dict)
    most: int = MANY

    def is_legal(self, layout: Layout) -> bool:
        """Whether the hardware can be divided like that."""
        times = Counter(part.profile for part in layout)
        if any(name not in self.profiles for name in times) or len(layout) > self.most:
            return False
        if any(count > self.profiles[name].most for name, count in times.items()):
            return False
        if self.slots:
            covered = [slot for part in layout for slot in self._covers(part)]
            fit = all(part.start in self.profiles[part.profile].starts for part in layout)
            return fit and len(covered) == len(set(covered)) and all(slot < self.slots for slot in covered)
        numbers = {part.start for part in layout}
        used = Counter[str]()
        for part in layout:
            used.update(self.profiles[part.profile].uses)
        return (
            len(numbers) == len(layout)
            and numbers <= set(range(self.most))
            and all(count <= self.has.get(resource, 0) for resource, count in used.items())
        )

    def place(self, layout: Layout, name: str) -> int | None:
        """Where one more partition called ``name`` begins, or ``None`` where it fits nowhere.

        Of several places the one is taken after which most fits still, the large profiles first. Partitions that are
        there never move. ``KeyError`` for a name that this table does not have.
        """
        profile = self.profiles[name]
        starts: Iterable[int] = profile.starts
        if not self.slots:
            taken = {part.start for part in layout}
            starts = [next(number for number in range(self.most + 1) if number not in taken)]
        options = [start for start in starts if self.is_legal((*layout, Partition(start, name)))]
        if len(options) < 2:
            return options[0] if options else None
        return max(options, key=lambda start: (self._open((*layout, Partition(start, name))), start))

    def smallest(self, milli: int, memory_bytes: int, among: Collection[str] | None = None) -> str | None:
        """The profile (of those ``among`` which to choose) with the least to spare that has this much of compute and
        memory; ``None`` if none has."""
        able = [one for one in self.profiles.values() if one.milli >= milli and one.memory_bytes >= memory_bytes]
        if among is not None:
            able = [one for one in able if one.name in among]
        best = min(able, key=lambda one: (one.memory_bytes, one.milli, one.most < MANY, one.name), default=None)
        return best.name if best else None

    def _covers(self, part: Partition) -> range:
        return range(part.start, part.start + self.profiles[part.profile].size)

    def _open(self, layout: Layout) -> tuple[int, ...]:
        """How many more of each profile could begin somewhere, the largest first."""
        sizes = sorted({profile.size for profile in self.profiles.values()}, reverse=True)
        return tuple(
            sum(
                self.is_legal((*layout, Partition(start, profile.name)))
                for profile in self.profiles.values()
                if profile.size == size
                for start in profile.starts
            )
            for size in sizes
        )


@cache
def tables() -> Mapping[str, PartitionTable]:
    """All tables by name, in the order in which they are tried."""
    content = tomllib.loads((Path(__file__).parent / "partitions.toml").read_text(encoding="utf-8"))
    return {entry["name"]: _table(entry) for entry in content["table"]}


def table_of(vendor: str, model: str) -> PartitionTable | None:
    """Return how a device of this model can be partitioned; ``None`` if it cannot, or is not in the tables."""
    text = f"{vendor} {model}"
    return next((one for one in tables().values() if re.search(one.match, text, re.IGNORECASE)), None)


def can_add(table: str, made: Layout | None, layout: Layout, part: Partition) -> bool:
    """Whether a device whose parts in ``layout`` are held can give ``part`` too: one of those ``made``, where they are,
    else one that its hardware allows beside them."""
    if made is not None:
        return part in made and part not in layout
    known = tables().get(table)
    return known is not None and known.is_legal((*layout, part))


def place_for(table: str, made: Layout | None, layout: Layout, name: str) -> int | None:
    """Where a partition called ``name`` begins that such a device can still give; ``None`` where there is none."""
    if made is not None:
        return min((part.start for part in made if part.profile == name and part not in layout), default=None)
    known = tables().get(table)
    return known.place(layout, name) if known is not None else None


def _table(entry: Mapping[str, object]) -> PartitionTable:
    raw: Mapping[str, object] = entry
    has: Mapping[str, int] = raw.get("has", {})  # type: ignore[assignment]
    compute: int = raw.get("of", 0) or has.get("cores", 0)  # type: ignore[assignment]
    slots: int = raw.get("slots", 0)  # type: ignore[assignment]
    profiles = {}
    for one in raw["profiles"]:  # type: ignore[attr-defined]
        uses = one.get("uses", {})
        slices = one.get("slices") or uses["cores"]
        profiles[one["name"]] = PartitionProfile(
            one["name"],
            1000 * slices // compute,
            one["memory_gib"] * GIB,
            1000 * one["size"] // slots if slots else 1000 * slices // compute,
            one.get("size", 0),
            tuple(one.get("starts", ())),
            uses,
            one.get("most", MANY),
        )
    return PartitionTable(
        str(raw["name"]),
        str(raw["kind"]),
        str(raw["match"]),
        str(raw["source"]),
        profiles,
        slots,
        has,
        raw.get("most", MANY),  # type: ignore[arg-type]
    )
