"""The Celery task of questions to the engine."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.signals import worker_shutting_down

from controlplane.whatif import questions
from controlplane.whatif.messages import LONGEST_S, Reply
from controlplane.whatif.thinker import NoAnswer, thinker


@shared_task(  # type: ignore[untyped-decorator]
    name="questions.answer", soft_time_limit=2 * LONGEST_S + 10, time_limit=2 * LONGEST_S + 20
)
def answer(name: str, params: dict[str, Any], language: str, key: str, fresh_s: int, slots: list[str]) -> None:
    """Compute the answer to one question in a separate process, and store the reply for those who wait.

    The task is acknowledged when it starts: if its worker is lost, those who still wait send the question again within
    seconds.
    """
    leases = [*slots, questions.sent_mark(key)]
    try:
        questions.renew(leases)
        reply = thinker.think(name, params, language, lambda: questions.renew(leases))
    except NoAnswer as error:
        reply = Reply(fault=str(error))
    finally:
        questions.release(slots)
    questions.put(key, reply, fresh_s)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop(**_: Any) -> None:
    """Stop the running computation: a worker that shuts down would otherwise wait for it."""
    thinker.stop()
