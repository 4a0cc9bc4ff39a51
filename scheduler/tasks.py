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
_wanted = threading.Event()
_clockwork: threading.Thread | None = None


@shared_task(name="scheduler.cycle", ignore_result=True)  # type: ignore[untyped-decorator]
def cycle() -> None:
    """One scheduling cycle. Doubled, late or lost, it does no harm.

    The clockwork's thread runs it, which keeps its database connection, and with that the plan of every statement:
    Celery closes those of its own threads after each task.
    """
    from controlplane.scheduling import loop

    if _clockwork is not None and _clockwork.is_alive():
        _wanted.set()
    else:
        loop.cycle()  # in a forked child of a worker, for one


@worker_ready.connect  # type: ignore[untyped-decorator]
def _begin(sender: Any = None, **_: Any) -> None:
    global _clockwork
    queues = {queue.name for queue in sender.task_consumer.queues} if getattr(sender, "task_consumer", None) else set()
    if not queues or "cycle" in queues:
        _clockwork = threading.Thread(target=_run, name="clockwork", daemon=True)
        _clockwork.start()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _end(**_: Any) -> None:
    _stopping.set()
    _wanted.set()


def _run() -> None:
    """Runs a cycle when one is wanted or where nobody has run one lately, and the periodic duties likewise."""
    from django.db import close_old_connections

    from controlplane.operations import watch
    from controlplane.scheduling import loop

    watched_at = time.monotonic()
    while True:
        is_wanted = _wanted.wait(max(0.0, watched_at + POLL_S - time.monotonic()))
        if _stopping.is_set():
            return
        _wanted.clear()
        try:
            if is_wanted or time.time() - loop.last_cycle_at() > POLL_S:
                loop.cycle()
            if time.monotonic() - watched_at >= POLL_S:
                watched_at = time.monotonic()
                watch.watch()
        except Exception:
            log.exception("the clockwork failed; it will try again")
        finally:
            close_old_connections()
