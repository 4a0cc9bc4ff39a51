"""The scaling of stages with the number of their nodes, from their pace on several."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler.core.model.types import SCALING

# The assumed exponent has the weight of a third of a run on one node and one on two.
TRUST: Final = 0.08


@dataclass(frozen=True, slots=True)
class Paced:
    """One attempt of a stage: the number of its nodes, and its pace in its own steps per second."""

    stage: str
    family: str
    size: int
    pace: float


@dataclass(slots=True)
class _Sums:
    """Sums of squares and products of the logarithms of size and pace, around the means of one stage each."""

    squares: float = 0.0
    products: float = 0.0

    def exponent(self, assumed: float) -> float:
        found = (self.products + TRUST * assumed) / (self.squares + TRUST)
        return round(min(1.0, max(0.0, found)), 6)


@dataclass(frozen=True)
class Scalings:
    """The exponents by which pace grows with size, from 0 (not at all) to 1 (linearly)."""

    families: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)

    def of(self, stage: str, family: str) -> float:
        """Return that of a stage, else that of its family, else the default."""
        return self.stages.get(stage, self.families.get(family, SCALING))


def scalings(runs: Iterable[Paced]) -> Scalings:
    """Compute the measured exponents. Only stages that ran on several sizes count, because steps of different stages
    cannot be compared. A family is shrunk towards the default, a stage towards its family."""
    by_stage: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in runs:
        if one.size > 0 and one.pace > 0:
            by_stage[one.family, one.stage].append((math.log(one.size), math.log(one.pace)))
    own: dict[tuple[str, str], _Sums] = {}
    together: dict[str, _Sums] = defaultdict(_Sums)
    for (family, stage), points in sorted(by_stage.items()):
        sums = _around_mean(points)
        if sums.squares > 0:
            own[family, stage] = sums
            together[family].squares += sums.squares
            together[family].products += sums.products
    families = {family: sums.exponent(SCALING) for family, sums in sorted(together.items())}
    return Scalings(families, {stage: sums.exponent(families[family]) for (family, stage), sums in own.items()})


def _around_mean(points: list[tuple[float, float]]) -> _Sums:
    size, pace = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
    squares = sum((x - size) ** 2 for x, _ in points)
    return _Sums(squares if squares > 1e-9 else 0.0, sum((x - size) * (y - pace) for x, y in points))
