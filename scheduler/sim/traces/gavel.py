"""The measured throughputs of Gavel (OSDI 2020): 26 job types on V100, P100 and K80, in steps per second.

CSV with a header: ``job_type``, ``scale_factor`` and a column for each model; other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scheduler.sim.traces.table import TraceColumn, read_table

MODELS: Final = ("v100", "p100", "k80")
COLUMNS: Final = (
    TraceColumn("job_type"),
    TraceColumn("scale_factor", "whole", least=1),
    *(TraceColumn(model, "number", required=False) for model in MODELS),
)


def throughputs(path: str | Path) -> Mapping[str, Mapping[str, float]]:
    """Return steps per second of each job type on one device of each model (upper case); models on which it does not
    run are left out. Raises :class:`TraceError`."""
    table = read_table(path, COLUMNS)
    return {
        row["job_type"]: {model.upper(): row[model] for model in MODELS if row[model]}
        for row in table.rows
        if row["scale_factor"] == 1
    }
