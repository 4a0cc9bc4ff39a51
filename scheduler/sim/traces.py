"""Reads a trace: what was submitted when, how long it ran, and what it asked for.

A trace is CSV with a header line. ``submit_s``, ``duration_s`` and ``gpus`` are required; times are seconds from any
origin, and ``gpus`` is per node. Optional columns: ``id``, ``project``, ``user``, ``kind``, ``priority`` (a number),
``nodes``, ``cpus`` (cores per node), ``limit_s`` (time limit), ``expected_s`` (what the user thought), ``needs`` (ids
of earlier lines, joined by ``;``). Other columns are passed over. A file whose name ends in ``.gz`` is unpacked.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIRED: Final = ("submit_s", "duration_s", "gpus")
OPTIONAL: Final = ("id", "project", "user", "kind", "priority", "nodes", "cpus", "limit_s", "expected_s", "needs")


class TraceError(ValueError):
    """Raised with the line and the column at which a trace cannot be read."""

    def __init__(self, line: int, column: str, problem: str) -> None:
        super().__init__(f'line {line}, column "{column}": {problem}')
        self.line, self.column = line, column


@dataclass(frozen=True, slots=True)
class Arrival:
    """One stage of a trace. ``duration_s`` is how long it truly runs on a device of speed 1."""

    id: str
    submit_s: float
    duration_s: float
    gpus: float
    project: str = "default"
    user: str = "trace"
    kind: str = "train"
    priority: int = 500
    nodes: int = 1
    cpus: float = 1.0
    limit_s: float | None = None
    expected_s: float | None = None
    needs: tuple[str, ...] = ()


def read(path: str | Path) -> list[Arrival]:
    """The arrivals of a trace file in order of submission."""
    path = Path(path)
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return parse(io.StringIO(raw.decode("utf-8-sig")))


def parse(lines: Iterable[str]) -> list[Arrival]:
    """The arrivals of CSV lines in order of submission. Raises :class:`TraceError`."""
    rows = csv.DictReader(lines)
    header = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = header
    for column in REQUIRED:
        if column not in header:
            raise TraceError(
                1, column, f"is missing; a trace needs {', '.join(REQUIRED)} and may have {', '.join(OPTIONAL)}"
            )
    arrivals: list[Arrival] = []
    known: set[str] = set()
    for row in rows:
        line = rows.line_num
        one = _arrival(row, line)
        if one.id in known:
            raise TraceError(line, "id", f'"{one.id}" was already used')
        for need in one.needs:
            if need not in known:
                raise TraceError(line, "needs", f'"{need}" is not the id of an earlier line')
        known.add(one.id)
        arrivals.append(one)
    return sorted(arrivals, key=lambda one: (one.submit_s, one.id))


def _arrival(row: dict[str, str], line: int) -> Arrival:
    def number(column: str, least: float, default: float | None = None) -> float | None:
        text = (row.get(column) or "").strip()
        if not text:
            if column in REQUIRED:
                raise TraceError(line, column, f"is empty; it must be a number of at least {least:g}")
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value < 1e15:
            raise TraceError(line, column, f'"{text}" must be a number of at least {least:g}')
        return value

    def whole(column: str, least: int, default: int) -> int:
        value = number(column, least, default)
        if value is None or value != int(value):
            raise TraceError(line, column, f'"{row.get(column)}" must be a whole number')
        return int(value)

    gpus = number("gpus", 0) or 0.0
    if gpus > 1 and gpus != int(gpus):
        raise TraceError(line, "gpus", f'"{row["gpus"]}" must be a whole number, or a share below 1')
    if 0 < gpus < 0.001:
        raise TraceError(line, "gpus", f'"{row["gpus"]}" is below the least share of 0.001')
    return Arrival(
        id=(row.get("id") or "").strip() or f"line {line}",
        submit_s=number("submit_s", 0) or 0.0,
        duration_s=number("duration_s", 0) or 0.0,
        gpus=gpus,
        project=(row.get("project") or "").strip() or "default",
        user=(row.get("user") or "").strip() or "trace",
        kind=(row.get("kind") or "").strip() or "train",
        priority=whole("priority", 0, 500),
        nodes=whole("nodes", 1, 1),
        cpus=number("cpus", 0.01, 1.0) or 1.0,
        limit_s=number("limit_s", 1),
        expected_s=number("expected_s", 0.001),
        needs=tuple(need.strip() for need in (row.get("needs") or "").split(";") if need.strip()),
    )
