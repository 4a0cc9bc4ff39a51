"""Deal: assigns devices anew in each round, whatever their speed; the baseline of policies without knowledge of
speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.core.hooks import Rank
from scheduler.core.matching.fair import parts, shuffled
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class Deal(Rank):
    """In each round the models come in a pseudo-random order, and each goes to the first stages in the order that have
    none yet, as in the published simulator of Gavel (OSDI 2020) under all policies that ignore speeds."""

    round_s: float = field(default=360.0, metadata={"range": (1.0, 604_800.0)})
    seed: int = 0

    def allot(self, stages: Sequence[Stage], world: ReadOnlyWorld) -> Mapping[tuple[str, int], float]:
        known = parts(stages, world)
        models = {model for part in known for model in part.models}
        turn = {model: len(models) - i for i, model in enumerate(shuffled(models, world.now, self.round_s, self.seed))}
        return {
            (part.stage.id, i): turn[model] - rank / (len(known) + 1)
            for rank, part in enumerate(known)
            for i, model in enumerate(part.models)
        }
