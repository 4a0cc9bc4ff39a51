"""Max-min: maximises the least throughput of a stage, relative to an equal part of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from scheduler.core.hooks import Rank
from scheduler.core.matching.fair import FairClaimant, parts, shuffled
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import received_s

# Stages with the same of these are alike: models, speeds and sizes of their alternatives, and their width.
Sort = tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...], float]


@dataclass(frozen=True)
class MaxMin(Rank):
    """Max-min fair shares of time on each device model, as a linear program, and rounds that serve the most owed first:
    allocation divided by the share of its life that a stage has had there (Gavel, OSDI 2020, sections 4 and 5).

    If ``heterogeneous`` is false all models count as equally fast, and each share is spread over them evenly: least
    attained service without knowledge of speeds. The models are then assigned one after the other in each round of
    ``round_s``, as *deal* does. Of all fair allocations the one with the highest throughput is taken. Needs scipy.
    """

    heterogeneous: bool = True
    round_s: float = field(default=360.0, metadata={"range": (1.0, 604_800.0)})
    seed: int = 0

    def allot(self, stages: Sequence[Stage], world: ReadOnlyWorld) -> Mapping[tuple[str, int], float]:
        known = parts(stages, world)
        if not known:
            return {}
        if not self.heterogeneous:
            return self._dealt(known, world)
        shares = _fair(known)
        return {
            (part.stage.id, i): share / _received(part, i, world)
            for part, row in zip(known, shares, strict=True)
            for i, share in enumerate(row)
            if share > 1e-6
        }

    def _dealt(self, known: Sequence[FairClaimant], world: ReadOnlyWorld) -> Mapping[tuple[str, int], float]:
        """Return the models in the order of this round, each for the stages with least of their share of it first."""
        shares = _even(known)
        order = shuffled(sorted({model for part in known for model in part.models}), world.now, self.round_s, self.seed)
        turn = {model: float(len(order) - i) for i, model in enumerate(order)}
        owed = {
            (part.stage.id, i): share / _received(part, i, world)
            for part, row in zip(known, shares, strict=True)
            for i, share in enumerate(row)
        }
        most = max(owed.values()) + 1.0
        models = {(part.stage.id, i): model for part in known for i, model in enumerate(part.models)}
        return {pair: turn[models[pair]] + value / most for pair, value in owed.items()}


def _received(part: FairClaimant, i: int, world: ReadOnlyWorld) -> float:
    """Return the share of its life so far that the stage ran on the model of its alternative ``i``; never 0."""
    life_s = max(world.now - part.stage.submitted_at, 1.0)
    return max(received_s(part.stage, world).get(part.models[i], 0.0) / life_s, 1e-6)


def _even(known: Sequence[FairClaimant]) -> list[list[float]]:
    """Return the same share of time for all, in proportion to the number of devices of each model."""
    sizes = {model: size for part in known for model, size in zip(part.models, part.sizes, strict=True)}
    asked = sum(part.width for part in known)
    share = min(1.0, sum(sizes.values()) / max(asked, 1e-9))
    return [[share * size / sum(part.sizes) for size in part.sizes] for part in known]


def _fair(known: Sequence[FairClaimant]) -> list[list[float]]:
    """Return the allocation whose smallest throughput (relative to that of an equal part) is largest, and then their
    sum.

    Equal stages get the same, so the program has a row for each class and not for each stage.
    """
    sorts = Counter((part.models, part.speeds, part.sizes, part.width) for part in known)
    rows = tuple(sorted(sorts.items()))
    shares = {sort: own for (sort, _), own in zip(rows, _solve(rows), strict=True)}
    return [list(shares[part.models, part.speeds, part.sizes, part.width]) for part in known]


@lru_cache(maxsize=32)
def _solve(rows: tuple[tuple[Sort, int], ...]) -> tuple[tuple[float, ...], ...]:
    optimize: Any = solver()
    sizes = {
        model: size for (models, _, all_sizes, _), _ in rows for model, size in zip(models, all_sizes, strict=True)
    }
    models = sorted(sizes)
    columns = [(k, i) for k, ((own, _, _, _), _) in enumerate(rows) for i in range(len(own))]
    count, sorts = len(columns), len(rows)
    upper = np.zeros((2 * sorts + len(models), count + 1))
    goal = np.zeros(count + 1)
    for column, (k, i) in enumerate(columns):
        (own, speeds, own_sizes, width), members = rows[k]
        usual = sum(rate * size for rate, size in zip(speeds, own_sizes, strict=True)) / sum(own_sizes)
        upper[k, column] = -speeds[i] / usual  # the least throughput is at most that of each stage
        upper[sorts + k, column] = 1.0  # no stage runs more than all the time
        upper[2 * sorts + models.index(own[i]), column] = width * members
        goal[column] = -1e-3 * members * speeds[i] / usual
    upper[:sorts, count] = 1.0
    goal[count] = -float(sum(members for _, members in rows))
    bound = np.array([0.0] * sorts + [1.0] * sorts + [sizes[model] for model in models])
    found = optimize.linprog(goal, A_ub=upper, b_ub=bound, bounds=(0, None), method="highs")
    if found.status != 0:
        raise RuntimeError(f"no fair allocation was found: {found.message}")
    shares: list[list[float]] = [[] for _ in rows]
    for (k, _), value in zip(columns, found.x[:count], strict=True):
        shares[k].append(float(value))
    return tuple(tuple(row) for row in shares)


def solver() -> Any:
    """Return scipy's solver of linear programs, an optional dependency. Raises ``RuntimeError`` if it is not
    installed."""
    try:
        from scipy import optimize
    except ImportError:
        raise RuntimeError("this policy needs scipy: install the extra with pip install switchyard[engine]") from None
    return optimize
