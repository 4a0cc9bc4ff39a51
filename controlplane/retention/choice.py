"""Which of some rows go: a pure function, so that a preview and a removal cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is kept: since when it has ended, how many bytes it has, and whether something still needs it."""

    id: Any
    at: datetime
    size: int
    is_needed: bool = False


def choose(rows: Iterable[Row], before: datetime | None, excess: int = 0) -> Iterator[Row]:
    """The rows that go, of ``rows`` with the oldest first: those from before a moment, and the oldest others until
    ``excess`` bytes are freed. What is needed never goes."""
    freed = 0
    for row in rows:
        if row.is_needed:
            continue
        if not (freed < excess or (before is not None and row.at < before)):
            return
        freed += row.size
        yield row
