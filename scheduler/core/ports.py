"""What the engine needs from the world around it: a store, and the judgements of a profile.

A policy is any object that has one or more of the methods below; it may leave out the others. It judges, and never
changes what it sees. The live record and the simulator both provide a :class:`Store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from scheduler.core.types import Alternative, Device, Grant, Node, Plan, Reason, Running, Snapshot, Stage

if TYPE_CHECKING:
    from scheduler.core.view import Option, View, Way


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


@runtime_checkable
class Orders(Protocol):
    def order(self, stage: Stage, view: View) -> float:
        """How urgent the stage is; the weighted sum over all policies decides, bigger goes first."""


@runtime_checkable
class Admits(Protocol):
    def admit(self, stage: Stage, alternative: Alternative, view: View) -> Reason | None:
        """Why this stage may not start in this way now, whatever is free; ``None`` lets it pass."""


@runtime_checkable
class Groups(Protocol):
    def groups(self, stage: Stage, nodes: Sequence[tuple[Node, tuple[Device, ...]]]) -> list[list[int]]:
        """Sets of nodes (as positions in ``nodes``) inside which a gang may live. Each node comes with the devices on
        it that match the stage's first ask."""


@runtime_checkable
class Fits(Protocol):
    def fits(self, stage: Stage, grants: tuple[Grant, ...], until: float, view: View) -> bool:
        """Whether the stage may hold ``grants`` of one node from now ``until`` then."""


@runtime_checkable
class Scores(Protocol):
    def score(self, node: Node, grants: tuple[Grant, ...], view: View) -> float:
        """How good these grants on this node are; the weighted sum over all policies decides, bigger is better."""


@runtime_checkable
class Chooses(Protocol):
    def choose(self, stage: Stage, options: Sequence[Option], view: View) -> Option:
        """The best of several ways to run a stage, each with its predicted start and end."""


@runtime_checkable
class Evicts(Protocol):
    def victims(self, stage: Stage, ways: Sequence[Way], wait_s: float, view: View) -> Eviction | None:
        """Whom to stop so that the stage can start in one of ``ways``, where that is worth its price. ``wait_s`` is how
        long it would wait otherwise."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A set of victims that is worth it: none of them could be left out."""

    option: Option
    victims: tuple[Running, ...]
    prices: tuple[float, ...]
    gain: float


ABILITIES: Final[dict[str, type]] = {
    "order": Orders,
    "admit": Admits,
    "groups": Groups,
    "fits": Fits,
    "score": Scores,
    "choose": Chooses,
    "victims": Evicts,
}
