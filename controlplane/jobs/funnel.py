"""Says how many nodes were left after each filter of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controlplane.clause_templates import RECORD
from controlplane.clauses import Told, clause, told


def steps(funnel: Iterable[Sequence[Any]], pool: str) -> list[tuple[Told, int]]:
    """Return each filter as a sentence and its clauses, with the number of nodes that were left.

    ``funnel`` has pairs of a :class:`~scheduler.core.model.funnel.Filter` and a number. Records that are older than the
    codes have English words in their place, which are returned unchanged.
    """
    return [(_filter(code, pool), count) for code, count in funnel]


def plain(funnel: Iterable[Sequence[Any]], pool: str) -> dict[str, Any]:
    """Return the same as ``funnel``, with words, and ``funnel_said``, with one clause for each filter that has one."""
    found = steps(funnel, pool)
    return {
        "funnel": [(each.text, count) for each, count in found],
        "funnel_said": [one for each, _ in found for one in each.said],
    }


def _filter(code: str, pool: str) -> Told:
    if code not in RECORD:
        return Told(code)
    return told(clause(code, pool=pool) if "{pool}" in RECORD[code] else clause(code))
