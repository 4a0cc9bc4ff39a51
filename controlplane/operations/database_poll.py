"""The database poll: what must go on without Redis, done by looking at the database every two seconds.

Messages through Redis make things quick. Where none has come for :data:`POLL_S`, because Redis or beat is gone, a
thread in the process that runs the scheduling cycles runs a cycle and looks for silent nodes itself. While messages
come it does nothing and has no connection. Gateways and browsers' sockets look at the database likewise; see
docs/decisions/048.
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
    """The thread. ``duties`` are by the name of the task that does the same: what to do, and when it was last done."""

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
            task_records.went_well(name, time.monotonic() - began_at)
        except Exception as error:
            log.exception("%s failed; the database poll tries again", name)
            task_records.failed(name, error)


def _start(**_: Any) -> None:
    if leader.QUEUE in Presence.queues:
        duties = {
            "scheduling.cycle": (loop.cycle, loop.last_cycle_at),
            "fleet.watch": (watch.watch, watch.last_watch_at),
        }
        DatabasePoll(duties, POLL_S).start()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _in_process(**_: Any) -> None:
    """Starts it in the process of a worker's pool, which runs the cycles and has all that they remember."""
    _start()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _beside_threads(sender: Any = None, **_: Any) -> None:
    """Starts it in a worker whose pool are threads of its own."""
    if isinstance(sender.pool, Threads):
        _start()
