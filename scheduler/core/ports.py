"""What the engine needs from the world around it. The live record and the simulator both provide these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scheduler.core.types import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a plan: ids of stages that started, were told to stop, or were skipped because the world had
    moved on since the snapshot."""

    started: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


class Store(Protocol):
    """The record as the engine sees it: read all at once, write all at once."""

    def load(self, now: float) -> Snapshot:
        """Everything that one cycle may know."""

    def apply(self, snapshot: Snapshot, plan: Plan, now: float) -> Applied:
        """Make the plan true. A placement whose stage or device changed since the snapshot is skipped, and only that
        one; a gang is placed whole or not at all."""
