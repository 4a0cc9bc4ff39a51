"""A thread that runs one call at a time for a caller that must not wait, such as of a probe whose driver may hang."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Worker:
    """Give it work with ``ask`` if it ``is_idle``; ``take`` returns the result once it is there.

    The thread never keeps the process alive: work that the kernel does not release is abandoned.
    """

    def __init__(self, name: str) -> None:
        self._orders: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._made: Any = None
        self.is_idle = True
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            self._made = order()
            self._done.set()

    def ask(self, work: Callable[[], Any]) -> None:
        """Start work. It must not raise."""
        assert self.is_idle, "one thing at a time"
        self.is_idle = False
        self._done.clear()
        self._orders.put(work)

    def take(self, patience_s: float) -> Any:
        """Return the result of the work, or None while it is not done."""
        if self.is_idle or not self._done.wait(patience_s):
            return None
        self.is_idle = True
        return self._made

    def close(self) -> None:
        self._orders.put(None)
