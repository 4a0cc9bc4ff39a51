"""Events of a Slurm cluster, one line per job: its request and its true run time.

Columns: ``submit_s``, ``run_s``, ``user``, ``nodes``, ``tasks`` (total cores), ``limit_s`` (requested), and if known
``qos``, ``partition``, ``mem`` and ``gres``. The quality of service becomes the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scheduler.core.model.clauses import clause
from scheduler.core.model.sentences import _
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.generic import WIDEST, YEARS_S
from scheduler.sim.traces.table import TraceColumn, TraceError, TraceRow, read_table

_GPUS: Final = re.compile(r"(?:gres/)?gpu(?::[\w.-]+)?[:=](\d{1,4})")
COLUMNS: Final = (
    TraceColumn("submit_s", "number"),
    TraceColumn("run_s", "number", most=YEARS_S),
    TraceColumn("user"),
    TraceColumn("nodes", "whole", least=1, most=WIDEST),
    TraceColumn("tasks", "whole", least=1, most=WIDEST),
    TraceColumn("limit_s", "number", least=1, most=YEARS_S),
    TraceColumn("qos", required=False, default="default"),
    TraceColumn("partition", required=False, default=""),
    TraceColumn("mem", required=False, default=""),
    TraceColumn("gres", required=False, default=""),
)


def read(source: str | Path | Iterable[str], *, one_machine: bool = False, enforce_limits: bool = False) -> Trace:
    """Return the jobs in order of submission; those of zero run time are counted and left out.

    ``one_machine`` treats the cluster as a single pool of cores: each job asks for all its tasks on one node and for no
    GPU. The requested limit is what the user expects; ``enforce_limits`` also ends a job there (Slurm has a grace
    period, so a few jobs of a real log ran longer).
    """
    table = read_table(source, COLUMNS, repeats=True, order_by="submit_s")
    table.leave_out(lambda row: row["run_s"] <= 0, clause("NoRunTime"))
    over = sum(row["run_s"] > row["limit_s"] for row in table.rows)
    if over:
        table.said.append((clause("RanOverLimit", count=over),))
    arrivals = tuple(_arrival(number, row, one_machine, enforce_limits) for number, row in enumerate(table.rows, 1))
    return Trace(arrivals, tuple(table.said), table.left_out)


def _arrival(number: int, row: TraceRow, one_machine: bool, enforce_limits: bool) -> Arrival:
    nodes = 1 if one_machine else row["nodes"]
    gpus = 0
    if row["gres"] and not one_machine:
        found = _GPUS.fullmatch(row["gres"])
        if not found:
            problem = _('"{value}" must be empty, or GPUs of one node such as gpu:2').format(value=row["gres"])
            raise TraceError(row.line, "gres", problem)
        gpus = int(found[1])
    return Arrival(
        id=f"slurm-{number:06}",
        submit_s=row["submit_s"],
        duration_s=row["run_s"],
        gpus=gpus,
        project=row["qos"],
        user=row["user"],
        kind="generic",
        nodes=nodes,
        cpus=row["tasks"] / nodes,
        limit_s=row["limit_s"] if enforce_limits else None,
        expected_s=row["limit_s"],
        name="/".join(word for word in (row["partition"], row["mem"], row["gres"]) if word),
    )
