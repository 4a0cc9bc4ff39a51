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
    """Thinks about one question in a process beside this one, and leaves the reply where the asker looks.

    Acknowledged as it begins: where its worker is gone, who still waits for the answer asks another within seconds.
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
    """Ends what is thought about: a worker that is stopped would wait for it."""
    thinker.stop()
