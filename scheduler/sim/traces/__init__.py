"""Traces: submission times, true run times and requests of stages.

Each format has a file with a function ``read``; all of them read through :mod:`scheduler.sim.traces.table`, which
reports errors with line and column. :func:`read` chooses by the name of the file and by its header.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from scheduler.core.model.sentences import _
from scheduler.sim.traces import families, generic, history, philly, slurm, swf
from scheduler.sim.traces.arrival import Arrival, Trace
from scheduler.sim.traces.table import TraceColumn, TraceError, TraceRow, TraceTable, open_text, read_table

__all__ = ["FORMATS", "Arrival", "Trace", "TraceColumn", "TraceError", "TraceRow", "TraceTable", "read", "read_table"]

FORMATS: Final[Mapping[str, Callable[[Path], Trace]]] = {
    "families": families.read,
    "generic": generic.read,
    "history": history.read,
    "philly": philly.read,
    "slurm": slurm.read,
    "swf": swf.read,
}


def read(path: str | Path, form: str = "auto") -> Trace:
    """Return the arrivals of a trace file in order of submission, whatever its format. Raises :class:`TraceError`.

    *auto* takes ``.swf`` as SWF and ``.jsonl`` as history or, if lines have ``submit_s``, as a generic trace; a CSV is
    recognised by its header.
    """
    path = Path(path)
    chosen = _guess(path) if form == "auto" else form
    if chosen not in FORMATS:
        raise ValueError(
            _('there is no trace format "{name}"; there are auto, {all}').format(name=form, all=", ".join(FORMATS))
        )
    return FORMATS[chosen](path)


def _guess(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    if name.endswith(".swf"):
        return "swf"
    try:
        with open_text(path) as file:
            first = file.readline(65_536)
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError):
        return "generic"  # whose reader reports what is wrong with the file
    if name.endswith((".jsonl", ".ndjson")):
        return "generic" if '"submit_s"' in first else "history"
    header = {word.strip() for word in first.split(",")}
    if {"timestamp", "num_gpus", "cluster"} <= header:
        return "philly"
    if {"single_share", "tail", "bound_share"} <= header:
        return "families"
    if {"run_s", "tasks", "limit_s"} <= header:
        return "slurm"
    return "generic"
