"""Deal: devices are dealt out anew in each round, whatever they are; the yardstick of those who know no speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.core.hooks import Rank
from scheduler.core.matching.fair import parts, shuffled
from scheduler.core.model.types import Stage
from scheduler.core.world.read_only import ReadOnlyWorld


@dataclass(frozen=True)
class Deal(Rank):
    """In each round the models come in an order that looks like chance, and each goes to the first of the line that
    have nothing yet, as the published simulator of Gavel (OSDI 2020) does under all policies that ignore speeds."""

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
