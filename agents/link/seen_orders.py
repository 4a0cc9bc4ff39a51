"""Orders that were begun already: an order may arrive more than once."""

from __future__ import annotations

from typing import Final

MOST: Final = 1_024


class SeenOrders:
    """The ids of the newest orders, at most :data:`MOST`."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def is_new(self, order: str) -> bool:
        """Whether this id was not asked about before; from now on it was."""
        if order in self._seen:
            return False
        self._seen[order] = None
        while len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]
        return True
