"""Things that stay the same object while they stay equal: a planner that remembers tells by identity what changed."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import Generic, TypeVar

from scheduler.core.types import Node, Running, Stage

T = TypeVar("T", Node, Stage, Running)


class Lasting(Generic[T]):
    """Remembers by id what it handed out last. One for each sort of thing."""

    def __init__(self) -> None:
        self._last: tuple[T, ...] = ()
        self._by_id: dict[str, T] = {}

    def of(self, found: Iterable[T]) -> tuple[T, ...]:
        """The same things in the same order, each the object of the last time where it equals it; where all are as they
        were, the tuple too."""
        kept = tuple(self._kept(one) for one in found)
        if len(kept) == len(self._last) and all(map(is_, kept, self._last)):
            return self._last
        self._last, self._by_id = kept, {one.id: one for one in kept}
        return kept

    def _kept(self, one: T) -> T:
        old = self._by_id.get(one.id)
        return old if old is not None and (old is one or old == one) else one
