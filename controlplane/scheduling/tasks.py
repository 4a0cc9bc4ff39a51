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
    """Run one scheduling cycle.

    Idempotent: it reads the database, and a cycle with nothing new to decide changes nothing, so a lost, late or
    duplicate message does no harm. After two minutes it is aborted, and the next cycle reads everything again.
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
    """Write reasons of waiting stages that the last cycle did not reach.

    Idempotent: the reasons are those of the last cycle.
    """
    try:
        loop.explain()
    except SoftTimeLimitExceeded:
        loop.forget()
        raise
