"""Follows a job in the foreground: shows its output until it ends; Ctrl-C detaches from it or cancels it."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from switchyard.cli import ending, exits
from switchyard.cli.printer import Printer

if TYPE_CHECKING:
    from switchyard.client import Client, JobRecord
    from switchyard.logs import Chunk

TWICE_S = 2.0
"""A second Ctrl-C within this time cancels without a question."""


def attach(client: Client, job: JobRecord, *, raw: bool, quiet: bool) -> int:
    """Show the output of ``job`` to its end; return its exit code, or 130 if the user detached."""
    from switchyard.logs import LogQuery

    printer = Printer(prefixed=len(job.stages) > 1, raw=raw)
    interrupts = _Interrupts(client, job)
    arrived: _Pump | None = None
    while True:
        try:
            # In here, because Ctrl-C may come as soon as its thread runs.
            arrived = arrived or _Pump(lambda: client.jobs.chunks(job, LogQuery(), follow=True))
            chunk = arrived.next()
            if chunk is None:
                break
            printer.write(chunk)
        except KeyboardInterrupt:
            if interrupts.detach():
                return exits.INTERRUPTED
    return ending.wait(client, [job.number], timeout_s=None, tell=False, quiet=quiet)


class _Pump:
    """Reads in a thread of its own, so that Ctrl-C never interrupts a read."""

    def __init__(self, source: Callable[[], Iterator[Chunk]]) -> None:
        self._queue: queue.Queue[Chunk | BaseException | None] = queue.Queue(maxsize=64)
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: Callable[[], Iterator[Chunk]]) -> None:
        try:
            for chunk in source():
                self._queue.put(chunk)
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where it can be answered
            self._queue.put(error)

    def next(self) -> Chunk | None:
        """Return the next piece, ``None`` after the last; raises what the reader raised."""
        found = self._queue.get()
        if isinstance(found, BaseException):
            raise found
        return found


class _Interrupts:
    """Handles Ctrl-C: asks on a terminal, cancels the job otherwise."""

    def __init__(self, client: Client, job: JobRecord) -> None:
        self._client, self._job = client, job
        self._cancelled = False
        self._asked_at = -TWICE_S

    def detach(self) -> bool:
        """Return whether the command should exit and the job go on."""
        if self._cancelled:
            print(f"left; job {self._job.number} is being cancelled", file=sys.stderr)
            return True
        now = time.monotonic()
        again, self._asked_at = now - self._asked_at < TWICE_S, now
        if again or not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._cancel()
            return False
        try:
            print(f"\njob {self._job.number}: [d]etach, [c]ancel, or go on? ", end="", file=sys.stderr, flush=True)
            answer = sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            answer = "c"
        if answer in ("d", "detach"):
            print(f"detached; job {self._job.number} goes on: yard logs -f {self._job.number}", file=sys.stderr)
            return True
        if answer in ("c", "cancel"):
            self._cancel()
        return False

    def _cancel(self) -> None:
        print(f"cancels job {self._job.number}", file=sys.stderr, flush=True)
        self._cancelled = True
        self._client.jobs.cancel(self._job, "Ctrl-C in yard run")
