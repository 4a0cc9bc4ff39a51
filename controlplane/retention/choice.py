"""Chooses which rows to remove: a pure function, so that preview and removal cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One record: since when it has ended, its size in bytes, and whether it is still needed."""

    id: Any
    at: datetime
    size: int
    is_needed: bool = False


def choose(rows: Iterable[Row], before: datetime | None, excess: int = 0) -> Iterator[Row]:
    """Yield the rows to remove, of ``rows`` with the oldest first: those from before a time, and the oldest others
    until ``excess`` bytes are freed. Needed rows are never removed."""
    freed = 0
    for row in rows:
        if row.is_needed:
            continue
        if not (freed < excess or (before is not None and row.at < before)):
            return
        freed += row.size
        yield row
