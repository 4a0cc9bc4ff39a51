"""What the engine needs from outside: a store for its input and output, and the policies of a profile.

A policy is any object that has one or more of the methods of the hooks. It judges and never changes what it reads. The
control plane and the simulator both provide a :class:`Store`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from scheduler.core.model.types import (
    News,
    Plan,
    Snapshot,
)

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of applying a plan: ids of stages that started, were told to stop, or were skipped because their
    rows had changed since the snapshot."""

    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


class Store(Protocol):
    """The database as the engine uses it: one read and one write per cycle."""

    def load(self, now: float) -> Snapshot:
        """Return the snapshot for one cycle: everything that it may know."""

    def apply(self, snapshot: Snapshot, plan: Plan, now: float) -> Applied:
        """Apply the plan. A placement whose stage or device changed since the snapshot is skipped, and only that
        one; a gang is placed whole or not at all."""


@runtime_checkable
class Remembers(Protocol):
    def news(self) -> News:
        """What changed between the last two calls of ``load``."""


@runtime_checkable
class Tells(Protocol):
    def due(self, snapshot: Snapshot, plan: Plan | None, now: float) -> Collection[str] | None:
        """Return the stages whose reasons to write after this plan, at least those that it names; ``None`` means all.

        Without a plan, return more of those not written yet.
        """

    def tell(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Write the reasons of waiting stages from the plan. Called after ``apply``."""
