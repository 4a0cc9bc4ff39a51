"""One line of advice on what a stage asked for, checked against everything that was measured of it. Pure.

Advice is given only where the whole run was measured, and only if all measurements would have fitted what is advised.
Among several the one is given that frees most, by the charge of devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.clauses import Clause, clause
from scheduler.core.resources.charges import CORE

GIB: Final = 2**30
# Shares of a device that are advised, the smallest first.
SHARES: Final = (0.25, 0.5)
# So many measurements are the least, and so much of the time must be measured.
ENOUGH_SAMPLES: Final = 60
ENOUGH_SHARE: Final = 0.95
# Memory on the host is advised with this reserve over the highest measurement, and only if it at least halves.
RESERVE: Final = 1.25
# What a GiB of host memory weighs in the choice among several pieces of advice.
MEMORY_WEIGHT: Final = CORE / 8


@dataclass(frozen=True, slots=True)
class StageHolding:
    """What a completed stage held of one kind of device, over all claims and attempts, and what was measured of it.

    ``count`` devices per node, of CPU ``count`` cores and ``memory_bytes`` of host memory. ``most_use`` is the highest
    utilisation of any of the devices, of CPU the most cores in use; ``most_memory_bytes`` likewise. ``fewest_samples``
    is that of the claim with the fewest, ``share_known`` the part of the time that has a measurement.
    """

    stage: str
    kind: str
    model: str
    count: float
    memory_bytes: int
    seconds: float
    charge: float
    is_whole: bool
    fewest_samples: int
    share_known: float
    most_use: float | None
    most_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Advised:
    """A piece of advice: what it says, and the charged device-seconds that it would free."""

    says: Clause
    frees: float


def is_measured(held: StageHolding) -> bool:
    """Whether enough was measured, over the whole run, to advise on it."""
    return (
        held.fewest_samples >= ENOUGH_SAMPLES
        and held.share_known >= ENOUGH_SHARE
        and held.most_use is not None
        and held.most_memory_bytes is not None
    )


def share_that_fits(held: StageHolding) -> float | None:
    """The smallest share of each device into which every measurement fits, by use and by memory; 0 without work."""
    assert held.most_use is not None
    assert held.most_memory_bytes is not None
    if held.most_use == 0:
        return 0.0
    fits = (s for s in SHARES if held.most_use <= s and held.most_memory_bytes <= s * held.memory_bytes)
    return next(fits, None)


def cores_that_fit(held: StageHolding) -> int:
    """The whole cores into which every measurement fits."""
    assert held.most_use is not None
    return max(1, math.ceil(held.most_use))


def memory_that_fits(held: StageHolding) -> int:
    """The host memory, in whole GiB, into which every measurement fits with a reserve."""
    assert held.most_memory_bytes is not None
    return max(1, math.ceil(held.most_memory_bytes * RESERVE / GIB)) * GIB


def advise(held: Sequence[StageHolding]) -> Clause:
    """Return the one piece of advice that frees most; else that all was used as asked, or too little was measured."""
    found = [piece for one in held if is_measured(one) for piece in _of(one)]
    if found:
        return max(found, key=lambda piece: piece.frees).says
    return clause("UsedAsAsked") if held and all(is_measured(one) for one in held) else clause("TooLittleMeasured")


def _of(held: StageHolding) -> Iterable[Advised]:
    if held.kind == "cpu":
        yield from _of_cores(held)
    elif held.is_whole and (share := share_that_fits(held)) is not None:
        weight = held.seconds * held.count * held.charge
        if share == 0:
            yield Advised(clause("DeviceUnused", stage=held.stage, device=held.model or held.kind), weight)
        else:
            says = clause(
                "HalfWouldDo" if share == 0.5 else "QuarterWouldDo",
                stage=held.stage,
                device=held.model or held.kind,
                used_bytes=held.most_memory_bytes,
                had_bytes=held.memory_bytes,
                busy=f"{100 * (held.most_use or 0):.0f} %",
            )
            yield Advised(says, weight * (1 - share))


def _of_cores(held: StageHolding) -> Iterable[Advised]:
    cores, memory_bytes = cores_that_fit(held), memory_that_fits(held)
    if 2 * cores <= held.count:
        says = clause(
            "FewerCores", stage=held.stage, used=f"{held.most_use:.1f}", had=f"{held.count:g}", cores=str(cores)
        )
        yield Advised(says, held.seconds * (held.count - cores) * CORE)
    if 2 * memory_bytes <= held.memory_bytes:
        says = clause(
            "LessMemory",
            stage=held.stage,
            used_bytes=held.most_memory_bytes,
            had_bytes=held.memory_bytes,
            memory_bytes=memory_bytes,
        )
        yield Advised(says, held.seconds * (held.memory_bytes - memory_bytes) / GIB * MEMORY_WEIGHT)
