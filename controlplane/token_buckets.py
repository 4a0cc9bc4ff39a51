"""Token buckets: how often something may be done, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
MOST: Final = 10_000


class TokenBuckets(Generic[K]):
    """A bucket for each key, full at first, which holds what flows in within ``burst_s`` seconds.

    At most :data:`MOST` keys are remembered, those that were used last.
    """

    def __init__(self, burst_s: float) -> None:
        self._burst_s = burst_s
        # By key, what is left, and the monotonic time when it was.
        self._left: dict[K, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, key: K, per_s: float) -> bool:
        """Take one token from the bucket of a key, into which ``per_s`` flow each second; False if it has none."""
        now = time.monotonic()
        with self._lock:
            most = per_s * self._burst_s
            left, at = self._left.pop(key, (most, now))
            left = min(most, left + (now - at) * per_s)
            is_taken = left >= 1
            self._left[key] = (left - is_taken, now)
            while len(self._left) > MOST:
                del self._left[next(iter(self._left))]
        return is_taken
