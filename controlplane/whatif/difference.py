"""Evaluates another profile on the recorded inputs of a cycle, and compares the two plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings

from controlplane.pools import profiles
from controlplane.scheduling import shadow
from controlplane.scheduling.store import LiveStore
from controlplane.whatif.questions import Question
from scheduler.decisions import difference, log, replay

# Deciding again with more stages than this would keep other questions waiting for too long.
MOST_STAGES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Otherwise:
    """Whether and how the other plan differs, with all stages by their names.

    ``recorded`` is false if the record of the decision is gone. ``waiting``, the number of waiting stages, is set only
    if there were too many to decide again.
    """

    recorded: bool = True
    waiting: int = 0
    differs: bool = False
    difference: dict[str, Any] | None = None


QUESTION: Final = Question("difference", Otherwise, fresh_s=600, is_personal=False)


def answer(params: Mapping[str, Any], _store: LiveStore, _now: float) -> Otherwise:
    """Answer the question; ``params`` has the ``number`` of the decision and the name of the other ``profile``."""
    record = log.find(settings.DECISIONS, params["number"])
    if record is None:
        return Otherwise(recorded=False)
    if len(record.snapshot.waiting) > MOST_STAGES:
        return Otherwise(waiting=len(record.snapshot.waiting))
    plan = replay.under(record, profiles.named(params["profile"]))
    seen = difference.compare(record.plan, plan)
    return Otherwise(differs=seen.any, difference=shadow.in_words(record, seen, plan))
