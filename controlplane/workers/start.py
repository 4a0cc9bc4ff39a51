"""Prepares a Celery worker before it takes its first message."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_shutdown
from django.conf import settings
from redis.exceptions import RedisError

from controlplane.workers import task_records as task_records  # connects itself
from controlplane.workers.leader import QUEUE, Leader
from controlplane.workers.presence import Presence, WorkerPresence, connect, write

log = logging.getLogger(__name__)


def prepare(app: Celery, name: str, options: Mapping[str, Any]) -> None:
    """Register the worker's presence. One that takes the scheduler's queue waits as a standby until no other does."""
    asked = options.get("queues") or sorted(app.amqp.queues)
    Presence.queues = tuple(asked.split(",") if isinstance(asked, str) else asked)
    threads = int(options.get("concurrency") or os.cpu_count() or 1)  # as Celery counts
    if len(Presence.queues) > 1 and "simulations" in Presence.queues and threads <= settings.SIMULATIONS_AT_ONCE:
        log.warning(
            "%d simulations may run at once and take all %d threads of %s; its other queues (%s) then wait: give it"
            " more with --concurrency, or lower YARD_SIMULATIONS_AT_ONCE",
            *(settings.SIMULATIONS_AT_ONCE, threads, name),
            ", ".join(queue for queue in Presence.queues if queue != "simulations"),
        )
    app.steps["consumer"].add(Presence)
    if QUEUE not in Presence.queues:
        return
    leader = Presence.leader = Leader()
    worker_process_init.connect(lambda **_: leader.leave_to_parent(), weak=False)
    worker_shutdown.connect(lambda **_: leader.close(), weak=False)
    redis = connect()

    def stand_by() -> None:
        with contextlib.suppress(RedisError):
            write(WorkerPresence(name, Presence.queues, stands_by=True), redis)

    leader.wait(stand_by)
    log.info("%s takes the queue %s", name, QUEUE)
