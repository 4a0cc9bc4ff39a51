"""Balance: assigns stages to device models so that the most urgent work is done fastest in total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler.core.hooks import Rank
from scheduler.core.matching.fair import FairClaimant, parts
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.service import attained_device_s, received_s
from scheduler.policies.max_min import solver


@dataclass(frozen=True)
class Balance(Rank):
    """The assignment of stages to models with the largest sum of speed times urgency, as a linear program.

    Urgency is the age of a stage divided by its work done (both plus ``head_start_s``, to the ``power``): the gradient
    of proportional fairness (Kelly, Maulloo and Tan, 1998). So young stages, which are often short, come before those
    with much service, and no stage waits for ever. With service alone, those with most would starve before the machines
    are full, and fast devices would go to young stages instead of those that need them. ``stay`` is the least gain, as
    a share, for leaving a device, against flapping. Needs scipy.
    """

    head_start_s: float = field(default=3_600.0, metadata={"range": (1.0, 1e9)})
    power: float = field(default=1.0, metadata={"range": (0.0, 10.0)})
    stay: float = 0.1

    def allot(self, stages: Sequence[Stage], world: ReadOnlyWorld) -> Mapping[tuple[str, int], float]:
        known = parts(stages, world)
        if not known:
            return {}
        urgency = [self._urgency(part, world) for part in known]
        here = [_model_now(part, world) for part in known]
        columns = [(j, i) for j, part in enumerate(known) for i in range(len(part.speeds))]
        worth = np.array([self._worth(known[j], i, urgency[j], here[j]) for j, i in columns])
        chosen = _assign(known, columns, worth)
        return {(known[j].stage.id, i): float(worth[k]) for k, (j, i) in enumerate(columns) if chosen[k] > 0.5}

    def _urgency(self, part: FairClaimant, world: ReadOnlyWorld) -> float:
        age_s = max(world.now - part.stage.submitted_at, 0.0)
        return float(((age_s + self.head_start_s) / (_done_s(part, world) + self.head_start_s)) ** self.power)

    def _worth(self, part: FairClaimant, i: int, urgency: float, here: str) -> float:
        return part.speeds[i] * urgency * part.width * (1 + self.stay * (part.models[i] == here))


def _done_s(part: FairClaimant, world: ReadOnlyWorld) -> float:
    """Return the work done so far, in seconds of a device of speed 1; service on models that no alternative has any
    more, or with only a known sum, counts with the usual speed."""
    speeds = dict(zip(part.models, part.speeds, strict=True))
    received = received_s(part.stage, world)
    elsewhere_s = max(attained_device_s(part.stage, world) / part.width - sum(received.values()), 0.0)
    return sum(span * speeds.get(model, part.usual) for model, span in received.items()) + elsewhere_s * part.usual


def _model_now(part: FairClaimant, world: ReadOnlyWorld) -> str:
    running = world.running.get(part.stage.id)
    if running is None:
        return ""
    held = [world.ledger.devices[one.device] for rank in running.placement.grants for one in rank]
    return next((one.model for one in held if is_accelerator(one.kind)), "")


def _assign(known: Sequence[FairClaimant], columns: Sequence[tuple[int, int]], worth: Any) -> Any:
    """Return how much of each pair of stage and feasible set is chosen, 0 to 1; only whole pairs if all stages are
    equally wide."""
    optimize: Any = solver()
    sizes = {model: size for part in known for model, size in zip(part.models, part.sizes, strict=True)}
    models = sorted(sizes)
    if all(part.width == 1.0 for part in known):
        return _match(optimize, columns, worth, [models.index(known[j].models[i]) for j, i in columns], sizes, models)
    upper = np.zeros((len(known) + len(models), len(columns)))
    for column, (j, i) in enumerate(columns):
        upper[j, column] = 1.0
        upper[len(known) + models.index(known[j].models[i]), column] = known[j].width
    bound = np.array([1.0] * len(known) + [sizes[model] for model in models])
    found = optimize.linprog(-worth / worth.max(), A_ub=upper, b_ub=bound, bounds=(0, 1), method="highs")
    if found.status != 0:
        raise RuntimeError(f"no assignment was found: {found.message}")
    return found.x


def _match(
    optimize: Any,
    columns: Sequence[tuple[int, int]],
    worth: Any,
    model_at: Sequence[int],
    sizes: Mapping[str, float],
    models: Sequence[str],
) -> Any:
    """Do the same for stages of one device each, as a matching with single devices, which is much faster."""
    stages = 1 + max(j for j, _ in columns)
    table = np.zeros((stages, len(models)))
    for (j, _), model, value in zip(columns, model_at, worth, strict=True):
        table[j, model] = max(table[j, model], value)
    devices = np.repeat(np.arange(len(models)), [min(int(sizes[model]), stages) for model in models])
    rows, chosen = optimize.linear_sum_assignment(table[:, devices], maximize=True)
    own = dict(zip(rows.tolist(), devices[chosen].tolist(), strict=True))
    return np.array([float(own.get(j) == model) for (j, _), model in zip(columns, model_at, strict=True)])
