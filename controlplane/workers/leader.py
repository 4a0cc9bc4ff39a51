"""Which of several workers takes the queue ``scheduling``: the one that holds an advisory lock in the database.

A worker that is to take it waits here before it starts, and holds the lock on a connection of its own until it ends. So
one process plans, with all that it remembers, and a second one stands by and goes on at once when the first is gone.
Correctness does not rest on it: two that plan at once would be slower, not wrong.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from django.db import DatabaseError, InterfaceError, OperationalError, connection

log = logging.getLogger(__name__)

QUEUE: Final = "scheduling"
LOCK: Final = 0x59415245
# How long each wait for the lock lasts, and how long a database that is away is left alone.
WAIT_S: Final = 2
# A leader's host may vanish without a word: the database notices after idle + interval x count seconds.
_WATCHED: Final = {"tcp_keepalives_idle": "3", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"}


class Leader:
    """The lock, and the connection that holds it. For the main thread of a worker."""

    def __init__(self) -> None:
        self._line = connection.copy()
        self._pid = os.getpid()

    def wait(self, tell: Callable[[], None]) -> None:
        """Returns once this process holds the lock; ``tell`` is called while another does."""
        while not self._takes(WAIT_S):
            tell()

    def check(self) -> None:
        """Ends this worker where the lock was lost and another has it. A database that is away is waited for."""
        try:
            with self._line.cursor() as cursor:
                cursor.execute("SELECT 1")
            return
        except (DatabaseError, InterfaceError):
            self._line.close()
        if self._takes(0.1) or not self._answers():
            return
        log.warning("another worker takes the queue %s by now; this one ends", QUEUE)
        os.kill(os.getpid(), signal.SIGTERM)

    def leave_to_parent(self) -> None:
        """Lets a forked child keep no end of the connection, which would hold the lock for as long as it lives."""
        if os.getpid() != self._pid and self._line.connection is not None:
            # Another file takes its place: closing would say goodbye to the server for the parent.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, self._line.connection.fileno())
            os.close(nowhere)

    def close(self) -> None:
        """Gives the lock to whoever waits for it."""
        self._line.close()

    def _takes(self, wait_s: float) -> bool:
        try:
            with self._line.cursor() as cursor:
                for name, value in {**_WATCHED, "lock_timeout": f"{round(wait_s * 1000)}ms"}.items():
                    cursor.execute("SELECT set_config(%s, %s, false)", [name, value])
                cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
            return True
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != "55P03":  # no "lock not available": it is away
                self._line.close()
                time.sleep(wait_s)
            return False

    def _answers(self) -> bool:
        try:
            self._line.ensure_connection()
        except OperationalError:
            return False
        return True
