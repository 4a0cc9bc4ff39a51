"""The standard workload format of the Parallel Workloads Archive: one job per line, 18 numbers, -1 if unknown.

Processors become CPU cores of one node: SWF describes one machine without nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scheduler.core.model.clauses import clause
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.generic import WIDEST, YEARS_S
from scheduler.sim.traces.table import TraceColumn, read_table

_UNKNOWN: Final = ("-1", "-1.0", "-1.00")
COLUMNS: Final = (
    TraceColumn("job", "whole"),
    TraceColumn("submit_s", "number"),
    TraceColumn("run_s", "number", required=False, most=YEARS_S, absent=_UNKNOWN, default=0.0),
    TraceColumn("processors", "whole", required=False, most=WIDEST, absent=_UNKNOWN, default=0),
    TraceColumn("asked_processors", "whole", required=False, most=WIDEST, absent=_UNKNOWN, default=0),
    TraceColumn("asked_s", "number", required=False, most=YEARS_S, absent=_UNKNOWN),
    TraceColumn("user", "whole", required=False, absent=_UNKNOWN),
    TraceColumn("group", "whole", required=False, absent=_UNKNOWN),
    TraceColumn("executable", "whole", required=False, absent=_UNKNOWN),
)


def read(source: str | Path | Iterable[str]) -> Trace:
    """Return the jobs of an SWF file in order of submission; those that never ran are counted and left out."""
    table = read_table(source, COLUMNS, form="swf", key="job", order_by="submit_s")
    table.leave_out(lambda row: row["run_s"] <= 0, clause("NoKnownRunTime"))
    table.leave_out(lambda row: max(row["processors"], row["asked_processors"]) < 1, clause("NoProcessors"))
    arrivals = tuple(
        Arrival(
            id=str(row["job"]),
            submit_s=row["submit_s"],
            duration_s=row["run_s"],
            gpus=0.0,
            project="default" if row["group"] is None else f"group{row['group']}",
            user="trace" if row["user"] is None else f"user{row['user']}",
            kind="generic",
            cpus=float(row["asked_processors"] or row["processors"]),
            expected_s=row["asked_s"] or None,
            name="" if row["executable"] is None else f"executable{row['executable']}",
        )
        for row in table.rows
    )
    return Trace(arrivals, tuple(table.said), table.left_out)
