"""Judges what is to be promoted: the gate by what the stage reported, and the trial of a new revision by its answers.

Pure: the same numbers give the same verdict. What was not reported, or is no finite number, never passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from router.protocol import BOUNDS

# Before so many answers an error more or less decides nothing, unless the time of the trial is over, or so many came
# that a revision within the bound would have them once in a thousand trials: a router asks what fails ever less often.
ENOUGH: Final = 20
FEWEST: Final = 5
CHANCE: Final = 0.001
# The share of the answers whose first byte must come within the bound.
FIRST_BYTE_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether something passes, and the clause that says why (see ``controlplane.clause_templates``)."""

    passes: bool
    code: str
    params: Mapping[str, Any]


def finite(value: object) -> float | None:
    """Return a reported value as a number; None for what is none, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def judge(asked: Mapping[str, Any], reported: Mapping[str, Any], serving: float | None) -> GateVerdict:
    """Judge a gate by what the stage reported; ``serving`` is the metric of the model that serves, None if unknown.

    Where the serving model is not known by this metric there is nothing to be better than: then the bounds decide, and
    without any nothing passes.
    """
    metric = asked["metric"]
    if metric not in reported:
        return GateVerdict(False, "GateNotReported", {"metric": metric})
    value = finite(reported[metric])
    if value is None:
        return GateVerdict(False, "GateNoNumber", {"metric": metric, "value": str(reported[metric])[:40]})
    said: dict[str, Any] = {"metric": metric, "value": said_number(value)}
    most, least = asked["at_most"], asked["at_least"]
    if most is not None and not value <= most:
        return GateVerdict(False, "GateTooLarge", {**said, "bound": said_number(most)})
    if least is not None and not value >= least:
        return GateVerdict(False, "GateTooSmall", {**said, "bound": said_number(least)})
    if not asked["better_than_serving"]:
        return GateVerdict(True, "GatePassed", said)
    if serving is None:
        is_bounded = most is not None or least is not None
        return GateVerdict(is_bounded, "GatePassedFirst" if is_bounded else "GateNothingToCompare", said)
    is_better = value < serving if asked["goal"] == "minimize" else value > serving
    return GateVerdict(
        is_better, "GatePassedBetter" if is_better else "GateNotBetter", {**said, "serving": said_number(serving)}
    )


def said_number(value: float) -> str:
    """Return a number as sentences have it."""
    return f"{value:.6g}"


class Trial(StrEnum):
    """What follows from the trial of a revision so far."""

    GOES_ON = "goes_on"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TrialAnswers:
    """What the replicas of a revision answered: how many, how many of them failed or broke off, and counts of the
    times to the first byte by ``router.protocol.BOUNDS``."""

    count: int = 0
    errors: int = 0
    first_bytes: Sequence[int] = ()


def judge_trial(bounds: Mapping[str, Any], answers: TrialAnswers, lasted_s: float) -> tuple[Trial, GateVerdict]:
    """Judge the trial of a revision that is ready; ``bounds`` are those of ``canary`` in the job file.

    It fails at once when enough answers show it, or more errors than chance explains; with fewer when its time is over.
    """
    is_over = lasted_s >= bounds["for_s"]
    said: dict[str, Any] = {"answers": answers.count, "errors": answers.errors}
    is_enough = is_over or answers.count >= ENOUGH
    if _are_too_many(answers, bounds["errors_at_most"], is_enough):
        verdict = GateVerdict(False, "TrialErrors", {**said, "most": f"{bounds['errors_at_most']:g}"})
        return Trial.FAILED, verdict
    if answers.count and is_enough:
        late, timed = _late(answers.first_bytes, bounds["first_byte_s"])
        if timed and late > (1 - FIRST_BYTE_SHARE) * timed:
            most = f"{bounds['first_byte_s']:g}"
            return Trial.FAILED, GateVerdict(False, "TrialLate", {"late": late, "answers": timed, "most_s": most})
    if not is_over:
        return Trial.GOES_ON, GateVerdict(True, "TrialGoesOn", said)
    return Trial.PASSED, GateVerdict(True, "TrialPassed" if answers.count else "TrialUnasked", said)


def _are_too_many(answers: TrialAnswers, most_percent: float, is_enough: bool) -> bool:
    """Whether more than this share of the answers failed: of enough, or of fewer beyond what chance explains."""
    if not answers.count or 100 * answers.errors / answers.count <= most_percent:
        return False
    return is_enough or (answers.count >= FEWEST and _tail(answers.errors, answers.count, most_percent / 100) < CHANCE)


def _tail(errors: int, count: int, share: float) -> float:
    """Return how likely at least so many errors are among ``count`` answers, if each fails with this probability."""
    return sum(math.comb(count, n) * share**n * (1 - share) ** (count - n) for n in range(errors, count + 1))


def _late(counts: Sequence[int], most_s: float | None) -> tuple[int, int]:
    """Return how many answers surely came later than the bound, and how many were timed."""
    if most_s is None:
        return 0, 0
    late = 0
    for lower, count in zip((0.0, *BOUNDS), counts, strict=False):
        late += count if lower >= most_s else 0
    return late, sum(counts)
