"""What is read again from the database every few seconds: between cycles, so that nobody who starts waits for it."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Reread(ABC):
    """A summary of the record that may be some seconds old. ``every_s`` is how long it is good for.

    The loop calls :meth:`refresh` at the end of a cycle. Whoever uses it without a loop, or first, calls
    :meth:`ensure`, which reads only what is long overdue.
    """

    every_s: float
    _read_at = float("-inf")

    def refresh(self, now: float) -> bool:
        """Read it again if it is due; return whether it was."""
        if now - self._read_at <= self.every_s:
            return False
        self._read(now)
        self._read_at = now
        return True

    def ensure(self, now: float) -> None:
        """Read it if nobody has refreshed it for so long that it misleads."""
        if now - self._read_at > 2 * self.every_s:
            self.refresh(now)

    @abstractmethod
    def _read(self, now: float) -> None:
        """Read it."""
