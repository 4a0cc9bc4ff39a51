"""Names as people read them."""

from __future__ import annotations

from scheduler.core.world.view import View


def name_of(view: View, stage_id: str) -> str:
    """Return the display name of a stage, ``#12 train``, or its id if it is not in this snapshot.

    In a dry run the job has no number yet.
    """
    stage = view.waiting.get(stage_id) or view.running.get(stage_id)
    return (f"#{stage.number} {stage.name}" if stage.number else stage.name) if stage else stage_id


def short_name_of(view: View, stage_id: str) -> str:
    """Return the name of a stage within its job."""
    stage = view.waiting.get(stage_id) or view.running.get(stage_id)
    return stage.name if stage else stage_id
