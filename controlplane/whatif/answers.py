"""Maps questions to the functions that answer them, and keeps the world that they use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from django.utils import translation

from controlplane.scheduling.store import LiveStore, clock
from controlplane.whatif import consolidation, counterfactuals, difference, dry_run, reorder
from controlplane.whatif.messages import LARGEST_ANSWER_BYTES, Reply
from scheduler.core.planning.garbage import keep_all

log = logging.getLogger(__name__)

ANSWERS: Final[Mapping[str, Callable[[Mapping[str, Any], LiveStore, float], Any]]] = {
    dry_run.QUESTION.name: dry_run.answer,
    counterfactuals.QUESTION.name: counterfactuals.answer,
    consolidation.QUESTION.name: consolidation.answer,
    difference.QUESTION.name: difference.answer,
    reorder.QUESTION.name: reorder.answer,
}
# Keeps its state between questions; for one thread.
_store = LiveStore()


def reply(name: str, params: Mapping[str, Any], language: str) -> Reply:
    """Return the reply to one question; errors become the fault of the reply."""
    try:
        with translation.override(language):
            answer = msgspec.json.encode(ANSWERS[name](params, _store, clock()))
    except Exception as error:
        log.exception("a question (%s) could not be answered", name)
        return Reply(fault=f"{type(error).__name__}: {error}"[:500])
    if len(answer) > LARGEST_ANSWER_BYTES:
        return Reply(fault=f"the answer has {len(answer):,} bytes, more than is kept")
    return Reply(answer=msgspec.Raw(answer))


def keep_world() -> None:
    """Exclude the world from garbage collection if the last question read it anew: of the state of a large cluster, one
    collection takes longer than an answer."""
    if _store.has_read_everything:
        keep_all()
