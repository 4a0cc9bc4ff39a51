"""What the engine needs from the world around it: a store, and the judgements of a profile.

A policy is any object that has one or more of the methods below; it may leave out the others. It judges, and never
changes what it sees. The live record and the simulator both provide a :class:`Store`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from scheduler.core.model.clauses import Said
from scheduler.core.model.types import (
    Device,
    Grant,
    News,
    Node,
    Placement,
    Plan,
    Reason,
    Running,
    Snapshot,
    Stage,
)

if TYPE_CHECKING:
    from scheduler.core.resources.fleet import Rates, Rows
    from scheduler.core.world.pending import Column
    from scheduler.core.world.request_class import FeasibleSet
    from scheduler.core.world.view import Option, View


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a plan: ids of stages that started, were told to stop, or were skipped because the world had
    moved on since the snapshot."""

    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


class Store(Protocol):
    """The record as the engine sees it: read all at once, write all at once."""

    def load(self, now: float) -> Snapshot:
        """Everything that one cycle may know."""

    def apply(self, snapshot: Snapshot, plan: Plan, now: float) -> Applied:
        """Make the plan true. A placement whose stage or device changed since the snapshot is skipped, and only that
        one; a gang is placed whole or not at all."""


@runtime_checkable
class Remembers(Protocol):
    def news(self) -> News:
        """What changed between the last two calls of ``load``."""


@runtime_checkable
class Tells(Protocol):
    def tell(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Say to those who wait what the whole plan says of them. It comes after ``apply``."""


@runtime_checkable
class Orders(Protocol):
    def order(self, stage: Stage, view: View) -> float:
        """How urgent the stage is; the weighted sum over all policies decides, bigger goes first."""


@runtime_checkable
class Levels(Protocol):
    def levels(self, pool: str, order: Column, due: Column, view: View) -> Column:
        """What each stage has on top of its score for how much is owed to its project. ``order`` are slots of the
        pending table, of one pool, as all other policies line them up; ``due`` is what the project of each will have
        received before it, in device-seconds for each unit of its weight."""

    def hysteresis(self, pool: str, view: View) -> float:
        """By how much more a project must be due than another before a promise to it yields, in the unit of ``due``."""


@runtime_checkable
class Guarantees(Protocol):
    def guarantees(self, pool: str, view: View) -> set[str]:
        """Stages, waiting or not, that are served from a part of the pool that is kept for whoever waits too long."""


@runtime_checkable
class Admits(Protocol):
    def admit(self, stage: Stage, feasible: FeasibleSet, view: View) -> Reason | None:
        """Why this stage may not start in this way now, whatever is free; ``None`` lets it pass."""


@runtime_checkable
class Groups(Protocol):
    def groups(self, stage: Stage, nodes: Sequence[tuple[Node, tuple[Device, ...]]]) -> list[list[int]]:
        """Sets of nodes (as positions in ``nodes``) inside which a gang may live. Each node comes with the devices on
        it that match the stage's first ask, and stands for all that have the same ones."""


@runtime_checkable
class Fits(Protocol):
    def fits(self, stage: Stage, grants: tuple[Grant, ...], until: float, view: View) -> bool:
        """Whether the stage may hold ``grants`` of one node from now ``until`` then."""


@runtime_checkable
class Scores(Protocol):
    def score(self, node: Node, grants: tuple[Grant, ...], view: View) -> float:
        """How good these grants on this node are; the weighted sum over all policies decides, bigger is better."""


@runtime_checkable
class Ranks(Protocol):
    def scores(self, feasible: FeasibleSet, rows: Rows, view: View) -> Rates:
        """What ``score`` says, for the places ``rows`` of ``feasible`` at once, all of which it fits. It may look at
        what is free on those nodes, at nothing that changes while they stay the same: it is remembered."""


@runtime_checkable
class Prefers(Protocol):
    def prefer(self, stage: Stage, feasible: FeasibleSet, rows: Rows, view: View) -> Rates | None:
        """What each of these places has for this one stage, on top of its score; ``None`` where all are equal to it.
        It is asked anew for every stage."""


@runtime_checkable
class Chooses(Protocol):
    def choose(self, stage: Stage, options: Sequence[Option], view: View) -> Option:
        """The best of several ways to run a stage, each with its predicted start and end."""


@runtime_checkable
class Evicts(Protocol):
    def could(self, stage: Stage, view: View) -> bool:
        """Whether anybody could be stopped for a stage of this priority at all; it is asked first and must be cheap."""

    def victims(self, stage: Stage, feasible_sets: Sequence[FeasibleSet], wait_s: float, view: View) -> Eviction | None:
        """Whom to stop so that the stage can start in one of ``feasible_sets``, where that is worth its price.
        ``wait_s`` is how long it would wait otherwise."""


@runtime_checkable
class Overtakes(Evicts, Protocol):
    def overtakers(self, pool: str, view: View) -> Sequence[Stage]:
        """Waiting stages of a pool for whom others of their own class may have to stop, the first to be asked for
        first. ``victims`` is asked for these alone, when everybody else has had their turn."""


@runtime_checkable
class Protects(Protocol):
    def protects(self, running: Running, view: View) -> bool:
        """Whether this running stage may not be stopped now for another, whatever that would gain."""


@runtime_checkable
class Allots(Protocol):
    def allot(self, stages: Sequence[Stage], view: View) -> Mapping[tuple[str, int], float]:
        """Which stages a rotation should run in which feasible set (as a position in the feasible sets of its request
        class), the most urgent pair with the biggest number. A pair that is not named gets nothing while another can
        use the devices."""


@runtime_checkable
class Turns(Protocol):
    def turns_at(self, stage: Stage, view: View) -> float | None:
        """When a running stage will be ordered differently although nothing happens, if it goes on running."""


@runtime_checkable
class Resizes(Protocol):
    """``settle_s`` is how soon another look is worth it where nobody tells of what may have changed."""

    settle_s: float

    def settled_at(self, running: Running, view: View) -> float:
        """From when on a running stage may grow."""

    def stakes(self, running: Running, size: int, view: View) -> tuple[float, float]:
        """What stopping a running stage to go on with ``size`` nodes costs and gains, in weighted device-seconds."""


@runtime_checkable
class Evacuates(Protocol):
    """``settle_s`` is for how long nothing may have started or stopped on the nodes concerned before a stage goes from
    or to them; 0 asks nothing."""

    settle_s: float

    def evacuates(self, running: Running, view: View) -> tuple[Said, float]:
        """Why a running stage should go on elsewhere, in clauses, and what that is worth in weighted
        device-seconds at best; no clause lets it stay."""

    def gains(self, running: Running, placement: Placement, view: View) -> float:
        """What going on at ``placement`` is worth, in weighted device-seconds; 0 where it cures nothing."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A set of victims that is worth it: none of them could be left out. ``sizes`` says with how many nodes each goes
    on; without it they all stop."""

    option: Option
    victims: tuple[Running, ...]
    prices: tuple[float, ...]
    gain: float
    sizes: tuple[int, ...] = ()


ABILITIES: Final[dict[str, type]] = {
    "order": Orders,
    "levels": Levels,
    "guarantees": Guarantees,
    "admit": Admits,
    "groups": Groups,
    "fits": Fits,
    "score": Scores,
    "scores": Ranks,
    "prefer": Prefers,
    "choose": Chooses,
    "victims": Evicts,
    "overtakers": Overtakes,
    "protects": Protects,
    "allot": Allots,
    "turns_at": Turns,
    "stakes": Resizes,
    "leaves": Evacuates,
}
