"""The generic trace format: CSV or JSON lines with the columns of :class:`Arrival`.

``submit_s``, ``duration_s`` and ``gpus`` are required; times are seconds from any origin, and ``gpus`` is per node.
Optional: ``id``, ``name``, ``project``, ``user``, ``kind``, ``priority`` (a number), ``nodes``, ``most_nodes`` (an
elastic stage runs on ``nodes`` to so many), ``scaling`` (the power of its nodes by which it is faster), ``cpus`` (cores
per node), ``limit_s`` (time limit), ``expected_s`` (what the user expected), ``needs`` (ids of earlier lines, joined by
``;``).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from scheduler.core.model.sentences import _
from scheduler.core.model.types import SCALING
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.table import TraceColumn, TraceError, TraceRow, read_table

YEARS_S: Final = 10 * 365 * 86_400.0  # a longer time is probably in another unit
WIDEST: Final = 1_000_000

COLUMNS: Final = (
    TraceColumn("submit_s", "number"),
    TraceColumn("duration_s", "number", most=YEARS_S),
    TraceColumn("gpus", "number", most=WIDEST),
    TraceColumn("id", required=False),
    TraceColumn("name", required=False, default=""),
    TraceColumn("project", required=False, default="default"),
    TraceColumn("user", required=False, default="trace"),
    TraceColumn("kind", required=False, default="train"),
    TraceColumn("priority", "whole", required=False, default=500, most=1_000_000),
    TraceColumn("nodes", "whole", required=False, default=1, least=1, most=WIDEST),
    TraceColumn("most_nodes", "whole", required=False, default=0, most=1024),
    TraceColumn("scaling", "number", required=False, default=SCALING, most=1.0),
    TraceColumn("cpus", "number", required=False, default=1.0, least=0.01, most=WIDEST),
    TraceColumn("limit_s", "number", required=False, least=1, most=YEARS_S),
    TraceColumn("expected_s", "number", required=False, least=0.001, most=YEARS_S),
    TraceColumn("needs", "ids", required=False, default=()),
)


def read(source: str | Path | Iterable[str], form: Literal["auto", "csv", "jsonl"] = "auto") -> Trace:
    """Return the arrivals of a file or of lines of text, in order of submission. Raises :class:`TraceError`."""
    table = read_table(source, COLUMNS, form=form, key="id", order_by="submit_s")
    _check_ids(sorted(table.rows, key=lambda row: row.line))
    return Trace(tuple(_arrival(row) for row in table.rows), tuple(table.said), table.left_out)


def _check_ids(rows: Iterable[TraceRow]) -> None:
    """Check that ids are unique, and that dependencies come before their dependents."""
    known: dict[str, int] = {}
    for row in rows:
        name = _id(row)
        if name in known:
            problem = _('"{value}" was already used in line {line}; each row needs its own').format(
                value=name, line=known[name]
            )
            raise TraceError(row.line, "id", problem)
        for need in row["needs"]:
            if need not in known:
                raise TraceError(row.line, "needs", _('"{value}" is not the id of an earlier line').format(value=need))
        known[name] = row.line


def _id(row: TraceRow) -> str:
    return row["id"] or f"line {row.line}"


def _arrival(row: TraceRow) -> Arrival:
    gpus = row["gpus"]
    if gpus > 1 and gpus != int(gpus):
        raise TraceError(
            row.line, "gpus", _('"{value:g}" must be a whole number, or a share below 1').format(value=gpus)
        )
    if 0 < gpus < 0.001:
        raise TraceError(row.line, "gpus", _('"{value:g}" is below the least share of 0.001').format(value=gpus))
    if 0 < row["most_nodes"] < row["nodes"]:
        problem = _('"{value}" must be 0 or at least nodes, {nodes}').format(
            value=row["most_nodes"], nodes=row["nodes"]
        )
        raise TraceError(row.line, "most_nodes", problem)
    return Arrival(**{**row.values, "id": _id(row)})
