"""The Celery tasks of the scheduler. They go to the queue ``scheduling``, which one worker process takes at a time."""

from __future__ import annotations

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded

from controlplane import changes
from controlplane.scheduling import loop


@shared_task(  # type: ignore[untyped-decorator]
    name=changes.CYCLE_TASK, acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def cycle() -> None:
    """Runs one scheduling cycle.

    Idempotent: it reads the record, and a cycle with nothing new to decide changes nothing. Lost, late or doubled, it
    does no harm. One that takes two minutes is given up, and the next reads everything again.
    """
    try:
        loop.cycle()
    except SoftTimeLimitExceeded:
        loop.forget()
        raise


@shared_task(  # type: ignore[untyped-decorator]
    name=changes.EXPLAIN_TASK, acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def explain() -> None:
    """Tells some of those who wait, and whom the last cycle left, why they wait.

    Idempotent: it says what the last cycle decided.
    """
    try:
        loop.tell()
    except SoftTimeLimitExceeded:
        loop.forget()
        raise
