"""The database poll: keeps the scheduler going without Redis, by reading the database every two seconds.

Messages through Redis only reduce latency. If none has come for :data:`POLL_S` seconds, because Redis or beat is down,
a thread in the process of the scheduling cycles runs a cycle and the failure detection itself. While messages come it
does nothing and has no connection. Gateways and browsers' sockets poll the database likewise; see docs/decisions/048.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from celery.concurrency.thread import TaskPool as Threads
from celery.signals import worker_process_init, worker_ready
from django.db import close_old_connections, connections

from controlplane.operations import watch
from controlplane.scheduling import loop
from controlplane.workers import leader, task_records
from controlplane.workers.presence import Presence

log = logging.getLogger(__name__)

POLL_S: Final = 2.0


class DatabasePoll:
    """The thread. ``duties`` maps the name of the equivalent task to a function that does it and one that returns when
    it was last done."""

    def __init__(self, duties: dict[str, tuple[Callable[[], None], Callable[[], float]]], every_s: float) -> None:
        self._duties = duties
        self._every_s = every_s
        self._tried_at = dict.fromkeys(duties, time.monotonic())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(max(0.0, min(map(self._due_at, self._duties)) - time.monotonic())):
            due = [name for name in self._duties if self._due_at(name) <= time.monotonic()]
            for name in due:
                self._do(name)
            if due:
                close_old_connections()
            else:
                connections.close_all()
        connections.close_all()

    def _due_at(self, name: str) -> float:
        _duty, last_at = self._duties[name]
        return max(self._tried_at[name], last_at()) + self._every_s

    def _do(self, name: str) -> None:
        began_at = self._tried_at[name] = time.monotonic()
        duty, _last_at = self._duties[name]
        try:
            duty()
            task_records.record_success(name, time.monotonic() - began_at)
        except Exception as error:
            log.exception("%s failed; the database poll tries again", name)
            task_records.record_failure(name, error)


def _start(**_: Any) -> None:
    if leader.QUEUE in Presence.queues:
        duties = {
            "scheduling.cycle": (loop.cycle, loop.last_cycle_at),
            "fleet.watch": (watch.watch, watch.last_watch_at),
        }
        DatabasePoll(duties, POLL_S).start()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _in_process(**_: Any) -> None:
    """Starts it in the process of a worker's pool that runs the cycles and keeps their state."""
    _start()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _in_worker_with_threads(sender: Any = None, **_: Any) -> None:
    """Starts it in a worker with a thread pool."""
    if isinstance(sender.pool, Threads):
        _start()
