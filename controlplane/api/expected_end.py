"""When what runs now will probably end."""

from __future__ import annotations

from datetime import datetime, timedelta

from controlplane.jobs.models import Attempt
from scheduler.core.lifecycle import State

# Below this share of its work a stage's own progress says little of how long it takes; the engine has the same bound.
TELLING_SHARE = 0.05


def expected_end(attempt: Attempt, now: datetime) -> datetime | None:
    """When this attempt will probably end; None where nobody can tell or that time has passed.

    The attempt's stage must be loaded. The prediction is the P50 with which it was placed, corrected by the progress
    that the stage reports; the time limit is the last word.
    """
    stage, estimate = attempt.stage, attempt.estimate or {}
    if attempt.ended_at is not None or attempt.stop_why or stage.state not in {State.STARTING, State.RUNNING}:
        return None
    began = attempt.started_at or attempt.created_at
    length_s = estimate["p50_s"] / (estimate.get("speed") or 1.0) if estimate.get("p50_s") else None
    remaining_s = _remaining_s(attempt, max(0.0, (now - began).total_seconds()), length_s)
    if remaining_s is None:
        return None
    ends = now + timedelta(seconds=remaining_s)
    if stage.request.get("time_limit_s") is not None:
        ends = min(ends, began + timedelta(seconds=stage.request["time_limit_s"]))
    ends = ends.replace(microsecond=0)
    return ends if ends > now else None


def _remaining_s(attempt: Attempt, elapsed_s: float, length_s: float | None) -> float | None:
    share = _share_done(attempt)
    if share is None or share < TELLING_SHARE:
        return None if length_s is None else length_s - elapsed_s
    if attempt.number == 1:
        return elapsed_s / share - elapsed_s
    # A part of that work was done by earlier attempts, so it does not tell how fast this one is.
    return None if length_s is None else length_s * (1 - share)


def _share_done(attempt: Attempt) -> float | None:
    progress = attempt.stage.progress or {}
    if not progress.get("total") or progress.get("step") is None:
        return None
    return min(1.0, max(0.0, float(progress["step"] / progress["total"])))
