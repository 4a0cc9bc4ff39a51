"""The traces of Muri (SIGCOMM 2022): 992 jobs derived from Philly, with the models that they train.

CSV with a header: ``job_id``, ``num_gpu``, ``submit_time`` (milliseconds), ``iterations``, ``model_name`` and
``iteration_time`` (milliseconds); other columns are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scheduler.core.model.clauses import clause
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.table import TraceColumn, read_table

COLUMNS: Final = (
    TraceColumn("job_id"),
    TraceColumn("num_gpu", "whole", least=1),
    TraceColumn("submit_time", "number"),
    TraceColumn("iterations", "whole", least=1),
    TraceColumn("model_name"),
    TraceColumn("iteration_time", "number", least=0.001),
)


def read(path: str | Path, per_node: int = 8) -> Trace:
    """Return the jobs in order of submission, named by the model that they train; they run for all their iterations.

    A job with more than ``per_node`` GPUs is a gang of whole nodes. Raises :class:`TraceError`.
    """
    table = read_table(path, COLUMNS, key="job_id", order_by="submit_time")
    table.leave_out(
        lambda row: row["num_gpu"] > per_node and row["num_gpu"] % per_node > 0,
        clause("NoWholeNodes", gpus=per_node),
    )
    return Trace(
        tuple(
            Arrival(
                id=row["job_id"],
                name=row["model_name"],
                submit_s=row["submit_time"] / 1000,
                duration_s=row["iterations"] * row["iteration_time"] / 1000,
                gpus=min(row["num_gpu"], per_node),
                nodes=max(1, row["num_gpu"] // per_node),
            )
            for row in table.rows
        ),
        tuple(table.said),
        table.left_out,
    )
