"""Jobs of Microsoft's Philly cluster (Jeon et al., ATC 2019) in the extract with one line per job.

Columns: ``timestamp`` (local time of the cluster, taken as UTC), ``duration`` in seconds, ``num_gpus`` and ``cluster``,
the virtual cluster, which becomes the project. A job with more GPUs than a node asks for whole nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scheduler.core.model.clauses import clause
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.generic import WIDEST, YEARS_S
from scheduler.sim.traces.table import TraceColumn, TraceRow, read_table

GPUS_PER_NODE: Final = 8
COLUMNS: Final = (
    TraceColumn("timestamp", "time"),
    TraceColumn("duration", "number", most=YEARS_S),
    TraceColumn("num_gpus", "whole", most=WIDEST),
    TraceColumn("cluster"),
)
NODE_COLUMNS: Final = (TraceColumn("vc"), TraceColumn("node num", "whole", least=1, most=WIDEST))


def read(
    source: str | Path | Iterable[str],
    *,
    first_day: str = "",
    last_day: str = "",
    gpus_per_node: int = GPUS_PER_NODE,
) -> Trace:
    """Return the jobs of the file, or those submitted from ``first_day`` to ``last_day`` inclusive (``2017-10-02``).

    Times become seconds since the first of these jobs. The file has no job number, so equal rows are kept and counted.
    """
    table = read_table(source, COLUMNS, repeats=True, order_by="timestamp")
    begin = _day(first_day) if first_day else float("-inf")
    end = _day(last_day) + 86_400.0 if last_day else float("inf")
    outside = sum(not begin <= row["timestamp"] < end for row in table.rows)
    if outside:
        table.rows = [row for row in table.rows if begin <= row["timestamp"] < end]
        table.said.append((clause("RowsOutside", count=outside),))
    table.leave_out(lambda row: row["duration"] <= 0, clause("NoDuration"))
    table.leave_out(lambda row: row["num_gpus"] < 1, clause("NoGpu"))
    zero = table.rows[0]["timestamp"] if table.rows else 0.0
    arrivals = tuple(_arrival(number, row, zero, gpus_per_node) for number, row in enumerate(table.rows, 1))
    return Trace(arrivals, tuple(table.said), table.left_out)


def virtual_clusters(source: str | Path | Iterable[str]) -> Mapping[str, int]:
    """Return how many nodes each virtual cluster owns."""
    return {row["vc"]: row["node num"] for row in read_table(source, NODE_COLUMNS, key="vc").rows}


def _arrival(number: int, row: TraceRow, zero: float, gpus_per_node: int) -> Arrival:
    gpus = row["num_gpus"]
    nodes = 1 if gpus <= gpus_per_node else -(-gpus // gpus_per_node)
    return Arrival(
        id=f"philly-{number:06}",
        submit_s=row["timestamp"] - zero,
        duration_s=row["duration"],
        gpus=gpus if nodes == 1 else gpus_per_node,
        project=row["cluster"],
        nodes=nodes,
    )


def _day(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ValueError(f'"{text}" is not a day; write it as 2017-10-02') from None
