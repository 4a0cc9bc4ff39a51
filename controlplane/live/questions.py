"""What people ask of the engine: the world they ask about, and answers that are given again for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from controlplane.live.store import LiveStore, clock
from scheduler.core.model.types import Snapshot

Answer = TypeVar("Answer")

# An answer takes whole plans: it is asked for by people, who look at it for a while.
FRESH_S = 15.0
# Planning a world beyond this so many times would keep a web process busy for too long.
MOST_WAITING = 5_000

_store = LiveStore()
_reading = threading.Lock()


@contextmanager
def store() -> Iterator[LiveStore]:
    """The store of this process, for one thread at a time: it remembers between two looks."""
    with _reading:
        yield _store


class Answers(Generic[Answer]):
    """Thinks of one question at a time, by its key, and remembers the answer for :data:`FRESH_S`."""

    def __init__(self, think: Callable[[Snapshot, float, str], Answer]) -> None:
        self._think = think
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Answer]] = {}

    def of(self, key: str = "", *, anew: bool = False) -> Answer:
        """The answer; ``anew`` for one that is not to be remembered from before."""
        with self._lock:
            at = time.monotonic()
            self._known = {name: one for name, one in self._known.items() if at - one[0] < FRESH_S}
            if anew or key not in self._known:
                with store() as seen:
                    now = clock()
                    world = seen.load(now)
                answer = self._think(world, now, key)
                self._known[key] = (time.monotonic(), answer)
            return self._known[key][1]

    def forget(self) -> None:
        """Nothing that was answered is given again."""
        with self._lock:
            self._known.clear()
