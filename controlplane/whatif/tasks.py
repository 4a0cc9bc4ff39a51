"""The Celery task of questions to the engine."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from controlplane.whatif import questions
from controlplane.whatif.messages import Reply
from controlplane.whatif.thinker import NoAnswer, thinker


@shared_task(name="whatif.answer", ignore_result=True)  # type: ignore[untyped-decorator]
def answer(name: str, params: dict[str, Any], language: str, key: str, fresh_s: int, slots: list[str]) -> None:
    """Thinks about one question in a process beside this one, and leaves the reply where the asker looks."""
    try:
        reply = thinker.think(name, params, language)
    except NoAnswer as error:
        reply = Reply(fault=str(error))
    finally:
        questions.release(slots)
    questions.put(key, reply, fresh_s)
