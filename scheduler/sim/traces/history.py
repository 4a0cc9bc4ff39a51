"""Finished stages of an installation as JSON lines, one object per stage, to be simulated again.

Keys: ``id``, ``submitted_at``, ``started_at`` and ``ended_at`` (of its last attempt; RFC 3339 or seconds since the
epoch), ``project``, ``user``, ``job`` and ``name``, ``kind``, ``priority``, ``nodes``, ``gpus`` (accelerators per node,
a share below 1), ``cpus`` (cores per node), ``speed`` (of its device, relative to one of speed 1), ``limit_s``,
``expected_s``, ``needs`` (ids), ``state``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from scheduler.core.model.clauses import clause
from scheduler.core.model.sentences import _
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.generic import WIDEST, YEARS_S
from scheduler.sim.traces.table import TraceColumn, TraceError, TraceRow, read_table

COLUMNS: Final = (
    TraceColumn("id"),
    TraceColumn("submitted_at", "time"),
    TraceColumn("started_at", "time", required=False),
    TraceColumn("ended_at", "time", required=False),
    TraceColumn("project"),
    TraceColumn("user"),
    TraceColumn("job", required=False, default=""),
    TraceColumn("name", required=False, default=""),
    TraceColumn("kind", required=False, default="generic"),
    TraceColumn("priority", "whole", required=False, default=500, most=1_000_000),
    TraceColumn("nodes", "whole", required=False, default=1, least=1, most=WIDEST),
    TraceColumn("gpus", "number", required=False, default=0.0, most=WIDEST),
    TraceColumn("cpus", "number", required=False, default=1.0, least=0.001, most=WIDEST),
    TraceColumn("speed", "number", required=False, default=1.0, least=1e-6, most=1e6),
    TraceColumn("limit_s", "number", required=False, least=1, most=YEARS_S),
    TraceColumn("expected_s", "number", required=False, least=0.001, most=YEARS_S),
    TraceColumn("needs", "ids", required=False, default=()),
    TraceColumn("state", required=False, default="COMPLETED"),
)


def read(source: str | Path | Iterable[str]) -> Trace:
    """Return the stages that ran to their end, in order of submission; the others are counted and left out.

    Times become seconds since the first submission; a duration is scaled to a device of speed 1. Dependencies that are
    not in the file are dropped and counted.
    """
    table = read_table(source, COLUMNS, form="jsonl", key="id", order_by="submitted_at")
    table.leave_out(lambda row: row["started_at"] is None or row["ended_at"] is None, clause("NoStartAndEnd"))
    table.leave_out(lambda row: row["state"] != "COMPLETED", clause("NotCompleted"))
    for row in table.rows:
        if not row["submitted_at"] <= row["started_at"] <= row["ended_at"]:
            raise TraceError(row.line, "ended_at", _("must not lie before started_at, nor that before submitted_at"))
    known = {row["id"]: row["submitted_at"] for row in table.rows}
    zero = table.rows[0]["submitted_at"] if table.rows else 0.0
    lost = 0
    arrivals = []
    for row in table.rows:
        needs = tuple(one for one in row["needs"] if known.get(one, float("inf")) <= row["submitted_at"])
        lost += len(needs) != len(row["needs"])
        arrivals.append(_arrival(row, zero, needs))
    if lost:
        table.said.append((clause("RowsLackNeeds", count=lost),))
    return Trace(tuple(arrivals), tuple(table.said), table.left_out)


def line(stage: Mapping[str, Any]) -> str:
    """Return one line of such a file. Raises ``ValueError`` for an unknown key."""
    names = [column.name for column in COLUMNS]
    for name in stage:
        if name not in names:
            raise ValueError(f'a line of history has no key "{name}"; it takes {", ".join(names)}')
    return json.dumps({name: stage[name] for name in names if stage.get(name) is not None}, ensure_ascii=False)


def _arrival(row: TraceRow, zero: float, needs: tuple[str, ...]) -> Arrival:
    return Arrival(
        id=row["id"],
        submit_s=row["submitted_at"] - zero,
        duration_s=(row["ended_at"] - row["started_at"]) * row["speed"],
        gpus=row["gpus"],
        project=row["project"],
        user=row["user"],
        kind=row["kind"],
        priority=row["priority"],
        nodes=row["nodes"],
        cpus=row["cpus"],
        limit_s=row["limit_s"],
        expected_s=row["expected_s"],
        needs=needs,
        name="/".join(word for word in (row["job"], row["name"]) if word),
    )
