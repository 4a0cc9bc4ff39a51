"""The typical workload: which requests are common, and what free capacity on a node is worth to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Stage, Typical
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.world.read_only import ReadOnlyWorld

T = TypeVar("T")
WHOLE: Final = 1000
_REMEMBERED: Final = 64
_MOST: Final = 500
# The default workload: single devices, gangs of a node, and shares, all with some cores.
EVEN: Final[tuple[Typical, ...]] = tuple(
    Typical(kind, count, milli, 8_000 * count * milli // WHOLE, share / 2)
    for kind in ("gpu", "npu")
    for count, milli, share in ((1, 1000, 0.5), (2, 1000, 0.1), (4, 1000, 0.1), (8, 1000, 0.1), (1, 500, 0.2))
)


def typical(stages: Iterable[Stage]) -> tuple[Typical, ...]:
    """Return what ``stages`` request (by their first alternative), the most frequent first."""
    counted: Counter[tuple[str, int, int, int]] = Counter()
    for stage in stages:
        asks = stage.alternatives[0].asks
        cores = sum(ask.count * ask.milli for ask in asks if ask.kind == "cpu")
        special = next((ask for ask in asks if is_accelerator(ask.kind)), None)
        device = (special.kind, special.count, special.milli) if special else ("cpu", 0, 0)
        counted[*device, cores] += 1
    return most_frequent(counted)


def most_frequent(counted: Counter[tuple[str, int, int, int]]) -> tuple[Typical, ...]:
    """Requests (kind, count, milli, cores) with how often they came, as a typical workload: the most frequent first,
    and only so many as a table can hold."""
    kept = sorted(counted.items(), key=lambda one: (-one[1], one[0]))[:_MOST]
    total = sum(times for _, times in kept)
    return tuple(Typical(*request, share=times / total) for request, times in kept)


def cut(workload: tuple[Typical, ...], covers: float) -> tuple[Typical, ...]:
    """Return the first requests of ``workload`` that together make up the share ``covers`` of it."""
    seen, kept = 0.0, []
    for one in workload:
        if seen >= covers - 1e-9:
            break
        kept.append(one)
        seen += one.share
    return tuple(replace(one, share=one.share / seen) for one in kept)


def by_identity(work_out: Callable[..., T]) -> Callable[..., T]:
    """Cache the result of ``work_out`` by the identity of the workload: hashing one costs more than looking it up."""
    known: dict[tuple[object, ...], tuple[tuple[Typical, ...], T]] = {}

    def looked_up(workload: tuple[Typical, ...], *rest: object) -> T:
        key = (id(workload), *rest)
        found = known.get(key)
        if found is None or found[0] is not workload:
            if len(known) >= _REMEMBERED:
                known.clear()
            found = known[key] = (workload, work_out(workload, *rest))
        return found[1]

    return looked_up


def in_force(world: ReadOnlyWorld) -> tuple[Typical, ...]:
    """Return the typical workload to use: that of the pools, else :data:`EVEN`."""
    said = [world.pools[name].typical for name in sorted(world.pools) if world.pools[name].typical]
    if len(said) == 1:
        return said[0]
    return tuple(replace(one, share=one.share / len(said)) for part in said for one in part) or EVEN


@dataclass(frozen=True, slots=True)
class Usable:
    """Return how much of the free capacity of a node typical requests could use: the complement of its fragmentation.

    By the definition of fragmentation in Weng et al., ATC 2023 (FGD): for a request that does not fit on the node, all
    free capacity there is lost; for one that fits, those devices are lost that have less free than it asks of each. All
    values are looked up: ``_parts[c, m]`` is the contribution of a device with ``m`` thousandths free if the cores
    suffice for the first ``c`` sizes of request, ``_wholes[c, n]`` that of ``n`` free devices for requests of several.
    """

    _cores: Rows
    _parts: Rates
    _wholes: Rates

    def of(self, free: Rows, cores: Rows) -> Rates:
        """In thousandths of a device, for lines of free devices and the free cores of the same nodes."""
        rank = np.searchsorted(self._cores, cores, side="right")
        parts = self._parts[rank[:, None], np.minimum(free, WHOLE)].sum(axis=1)
        found: Rates = parts + self._wholes[rank, (free >= WHOLE).sum(axis=1)]
        return found


@by_identity
def usable(workload: tuple[Typical, ...], kind: str, widest: int, covers: float) -> Usable:
    """The table for devices of ``kind``, at most ``widest`` of them on a node, by the most frequent requests that make
    up the share ``covers`` of all."""
    wanted = [one for one in cut(workload, covers) if one.kind == kind and one.count > 0]
    cores = np.array(sorted({one.cores_milli for one in wanted}), dtype=np.int64)
    parts = np.zeros((len(cores) + 1, WHOLE + 1))
    wholes = np.zeros((len(cores) + 1, widest + 1))
    for one in wanted:
        fits = int(np.searchsorted(cores, one.cores_milli)) + 1
        if one.count == 1:
            parts[fits:, min(one.milli, WHOLE) :] += one.share
        else:  # several shares of one size each on their own device are as rare as they are hard to place
            wholes[fits:, one.count :] += one.share
    parts *= np.arange(WHOLE + 1)
    wholes *= np.arange(widest + 1) * WHOLE
    return Usable(cores, parts, wholes)


@dataclass(frozen=True, slots=True)
class UsualDemand:
    """The typical demand for devices of a kind.

    ``cores_milli`` typically go with a device, and ``spread_milli`` is the standard deviation for one device's worth of
    requests. ``fill[m]`` is how many of ``m`` thousandths common requests can fill. ``gangs[n]`` is how many of ``n``
    free devices requests of several could fill, weighted by their part of the demand.
    """

    cores_milli: float
    spread_milli: float
    fill: npt.NDArray[np.int64]
    gangs: Rates


@by_identity
def demand(workload: tuple[Typical, ...], kind: str, common: float, widest: int) -> UsualDemand:
    """What typical requests for devices of ``kind`` need; sizes that less than the share ``common`` of them ask for are
    too rare to wait for."""
    wanted = [one for one in workload if one.kind == kind and one.count > 0]
    devices = sum(one.share * one.count * one.milli for one in wanted) / WHOLE
    gangs = np.zeros(widest + 1)
    if not devices:
        return UsualDemand(0.0, 0.0, np.arange(WHOLE + 1), gangs)
    mean = sum(one.share * one.cores_milli for one in wanted) / devices
    off = sum(one.share * (one.cores_milli - mean * one.count * one.milli / WHOLE) ** 2 for one in wanted)
    total = sum(one.share for one in wanted)
    sizes: Counter[int] = Counter()
    for one in wanted:
        sizes[min(one.milli, WHOLE)] += one.share  # type: ignore[assignment]
    often = [size for size, share in sizes.items() if share >= common * total]
    for one in wanted:
        if one.count > 1:
            gangs += one.share * one.count / devices * (np.arange(widest + 1) // one.count * one.count)
    return UsualDemand(mean, float(np.sqrt(off / devices)), fill([*often, WHOLE]), gangs)


def fill(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """For each gap from 0 to a whole device, how much of it the best choice of ``sizes`` fills (an unbounded
    knapsack)."""
    best = np.zeros(WHOLE + 1, dtype=np.int64)
    for gap in range(1, WHOLE + 1):
        best[gap] = max((size + best[gap - size] for size in sizes if size <= gap), default=0)
    return best
