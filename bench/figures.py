"""The figures of one measurement: the ones that are asked for, and lines that say where they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

Figure = int | float | str


@dataclass
class Figures:
    """Named figures, in the order of their importance; ``remarks`` are for people only."""

    values: dict[str, Figure]
    remarks: list[str] = field(default_factory=list)

    def flat(self) -> dict[str, Figure]:
        """Return the JSON object, with floats that a person can read."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in self.values.items()}

    def table(self) -> str:
        """Return a table for people."""
        width = max(len(name) for name in self.values)
        rows = [f"  {name:<{width}}  {value:>12}" for name, value in self.flat().items()]
        return "\n".join([*rows, *(f"  {remark}" for remark in self.remarks)])


def moment(text: str | None) -> float:
    """Read a time of the REST interface as seconds since the epoch; it has to have come."""
    assert text is not None, "asked for before it came"
    return datetime.fromisoformat(text).timestamp()


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least ``share`` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
