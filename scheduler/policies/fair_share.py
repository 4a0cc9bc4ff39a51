"""Fair share: who has used less than their part goes first."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.types import Stage
from scheduler.core.view import View


@dataclass(frozen=True)
class FairShare:
    """Half for each fair share that the project has used: 1 for none, 0.5 for exactly its share, 0.25 for twice.

    Its weight in the profile says how many points of priority the whole range is worth. Slurm's classic formula.
    """

    def order(self, stage: Stage, view: View) -> float:
        return float(2.0 ** -view.share(stage.project))
