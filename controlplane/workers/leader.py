"""Elects the worker that takes the queue ``scheduling``: the one that holds an advisory lock in the database.

A worker for this queue waits here before it starts, and holds the lock on a connection of its own until it ends. So one
process plans and keeps the planner's state, and a standby takes over at once when it ends. Correctness does not depend
on it: two planners at once would be slower, not wrong.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from django.db import DatabaseError, InterfaceError, OperationalError, connection

from controlplane.advisory_lock import LockKey

log = logging.getLogger(__name__)

QUEUE: Final = "scheduling"
# How long each wait for the lock lasts, and how long to pause while the database is unreachable.
WAIT_S: Final = 2
# A leader's host may disappear silently: the database notices after idle + interval x count seconds.
_WATCHED: Final = {"tcp_keepalives_idle": "3", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"}


class Leader:
    """The lock, and the connection that holds it. For the main thread of a worker."""

    def __init__(self) -> None:
        self._line = connection.copy()
        self._pid = os.getpid()

    def wait(self, tell: Callable[[], None]) -> None:
        """Return once this process holds the lock; ``tell`` is called while another does."""
        while not self._acquire(WAIT_S):
            tell()

    def check(self) -> None:
        """End this worker if the lock was lost and another process has it. An unreachable database is waited for."""
        try:
            with self._line.cursor() as cursor:
                cursor.execute("SELECT 1")
            return
        except (DatabaseError, InterfaceError):
            self._line.close()
        if self._acquire(0.1) or not self._is_alive():
            return
        log.warning("another worker takes the queue %s by now; this one ends", QUEUE)
        os.kill(os.getpid(), signal.SIGTERM)

    def leave_to_parent(self) -> None:
        """Detach a forked child from the connection, which would otherwise hold the lock as long as the child lives."""
        if os.getpid() != self._pid and self._line.connection is not None:
            # Another file replaces its descriptor: closing the connection would end the parent's session on the server.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, self._line.connection.fileno())
            os.close(nowhere)

    def close(self) -> None:
        """Release the lock to the next waiting worker."""
        self._line.close()

    def _acquire(self, wait_s: float) -> bool:
        try:
            with self._line.cursor() as cursor:
                for name, value in {**_WATCHED, "lock_timeout": f"{round(wait_s * 1000)}ms"}.items():
                    cursor.execute("SELECT set_config(%s, %s, false)", [name, value])
                cursor.execute("SELECT pg_advisory_lock(%s)", [LockKey.LEADER])
            return True
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != "55P03":  # no "lock not available": it is away
                self._line.close()
                time.sleep(wait_s)
            return False

    def _is_alive(self) -> bool:
        try:
            self._line.ensure_connection()
        except OperationalError:
            return False
        return True
