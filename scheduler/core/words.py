"""Names, times and spans as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from scheduler.core.view import View


def name_of(view: View, stage_id: str) -> str:
    """The stage as people name it: ``#12 train``, or its id if it is not in this snapshot.

    In a dry run the job has no number yet.
    """
    stage = view.waiting.get(stage_id) or view.running.get(stage_id)
    return (f"#{stage.number} {stage.name}" if stage.number else stage.name) if stage else stage_id


def short_name_of(view: View, stage_id: str) -> str:
    """The name of a stage among those of its own job."""
    stage = view.waiting.get(stage_id) or view.running.get(stage_id)
    return stage.name if stage else stage_id


def clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float) -> str:
    """A duration in the largest unit that keeps two digits: ``90 s``, ``25 min``, ``30 h``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
