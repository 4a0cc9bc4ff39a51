"""Ids of a job's trace and of its spans, made from those of the rows, so that all who tell of it agree."""

from __future__ import annotations

from typing import Final
from uuid import UUID

_LOW: Final = (1 << 64) - 1


def span_id(row: UUID, kind: str = "") -> int:
    """Return the id of a row's span: the same whenever it is sent, and never 0, which would mean none."""
    return (row.int & _LOW) ^ int.from_bytes(kind.encode(), "big") or 1


def traceparent(job: UUID, attempt: UUID) -> str:
    """Return the W3C ``traceparent`` of what an attempt of this job runs."""
    return f"00-{job.int:032x}-{span_id(attempt):016x}-01"
