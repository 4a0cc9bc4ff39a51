"""The Celery tasks of the scheduler, and the clockwork that makes them unnecessary: each calls one function.

A wake is a hint, the timer is the promise: a thread in every scheduler worker looks at the database every two seconds,
so that everything moves with Redis gone.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

log = logging.getLogger(__name__)

POLL_S = 2.0
_stopping = threading.Event()


@shared_task(name="scheduler.cycle", ignore_result=True)  # type: ignore[untyped-decorator]
def cycle() -> None:
    """One scheduling cycle. Doubled, late or lost, it does no harm."""
    from controlplane.live import loop

    loop.cycle()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _begin(sender: Any = None, **_: Any) -> None:
    queues = {queue.name for queue in sender.task_consumer.queues} if getattr(sender, "task_consumer", None) else set()
    if not queues or "cycle" in queues:
        threading.Thread(target=_poll, name="poll", daemon=True).start()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _end(**_: Any) -> None:
    _stopping.set()


def _poll() -> None:
    """Runs the cycle itself where nobody has run one lately, and the periodic duties likewise."""
    from django.db import close_old_connections

    from controlplane.live import loop, watch

    while not _stopping.wait(POLL_S):
        try:
            watch.watch()
            if time.time() - loop.last_cycle_at() > POLL_S:
                loop.cycle()
        except Exception:
            log.exception("the poll failed; it will try again")
        finally:
            close_old_connections()
