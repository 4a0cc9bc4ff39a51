"""The expected end of running stages, and since when overdue ones should have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.jobs.models import Attempt
from scheduler.core.model.lifecycle import State

# Progress below this share of the work does not predict the run time; the engine has the same bound.
TELLING_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """``expected_at`` is always in the future; if that time has passed, ``overdue_since_at`` is set instead. Both are
    None if unknown."""

    expected_at: datetime | None = None
    overdue_since_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Going:
    """The inputs of the expected end of an attempt: its stage's state, progress and time limit, and its own estimate.

    ``is_ending`` tells that it was asked to stop, or has ended.
    """

    state: str
    number: int
    began_at: datetime
    is_ending: bool
    estimate: Mapping[str, Any] | None
    progress: Mapping[str, Any] | None
    time_limit_s: float | None


def going(attempt: Attempt) -> Going:
    """Read these inputs of an attempt, whose stage must be loaded."""
    stage = attempt.stage
    return Going(
        state=stage.state,
        number=attempt.number,
        began_at=attempt.started_at or attempt.created_at,
        is_ending=attempt.ended_at is not None or bool(attempt.stop_why),
        estimate=attempt.estimate,
        progress=stage.progress,
        time_limit_s=stage.request.get("time_limit_s"),
    )


def expected_end(attempt: Going, now: datetime) -> ExpectedEnd:
    """Compute the expected end of an attempt.

    It is the P50 of the prediction at its start, corrected by the progress that the stage reports. After that time the
    P90 is used, and after the P90 the attempt is overdue. The time limit bounds all of them; without a prediction it
    tells only that the attempt is overdue, not that it will last so long.
    """
    if attempt.is_ending or attempt.state not in {State.STARTING, State.RUNNING}:
        return ExpectedEnd()
    ends = _predicted_end(attempt, attempt.began_at, now)
    limit = _after(attempt, attempt.time_limit_s)
    if ends is None and (limit is None or limit > now):
        return ExpectedEnd()
    ends = min(each for each in (ends, limit) if each is not None).replace(microsecond=0)
    return ExpectedEnd(expected_at=ends) if ends > now else ExpectedEnd(overdue_since_at=ends)


def overran_at(attempt: Going, ended_at: datetime) -> datetime | None:
    """When an ended attempt went on after its time limit or the P90 of the prediction at its start; None if neither."""
    bounds = (_after(attempt, attempt.time_limit_s), _after(attempt, _length_s(attempt, "p90_s")))
    passed = [each.replace(microsecond=0) for each in bounds if each is not None and each < ended_at]
    return min(passed, default=None)


def _after(attempt: Going, length_s: float | None) -> datetime | None:
    return None if length_s is None else attempt.began_at + timedelta(seconds=length_s)


def _predicted_end(attempt: Going, began: datetime, now: datetime) -> datetime | None:
    share, elapsed_s = _share_done(attempt), max(0.0, (now - began).total_seconds())
    median_s, late_s = _length_s(attempt, "p50_s"), _length_s(attempt, "p90_s")
    if share is not None and TELLING_SHARE <= share < 1:
        if attempt.number == 1:
            return now + timedelta(seconds=elapsed_s / share - elapsed_s)
        # Part of that work was done by earlier attempts, so it does not tell the speed of this one.
        return None if median_s is None else now + timedelta(seconds=median_s * (1 - share))
    if median_s is not None and elapsed_s >= median_s:
        median_s = max(median_s, late_s or 0.0)
    return None if median_s is None else began + timedelta(seconds=median_s)


def _length_s(attempt: Going, name: str) -> float | None:
    estimate = attempt.estimate or {}
    return estimate[name] / (estimate.get("speed") or 1.0) if estimate.get(name) else None


def _share_done(attempt: Going) -> float | None:
    progress = attempt.progress or {}
    if not progress.get("total") or progress.get("step") is None:
        return None
    return min(1.0, max(0.0, float(progress["step"] / progress["total"])))
