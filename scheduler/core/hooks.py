"""What a policy may judge: four hooks, each a class that a policy derives from and overrides in part.

:class:`Rank` says who is looked at first, :class:`Admit` who may start and where at all, :class:`Score` which place is
best, :class:`Victims` who is stopped, shrunk or moved for whom. A policy may derive from several. What it does not
override it has no opinion on, and the engine does not ask (:func:`overrides`). A policy sees the world through
:class:`~scheduler.core.world.read_only.ReadOnlyWorld`: it returns its judgement and changes nothing. What it wants to
try, it tries in a ``trial``, which leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from scheduler.core.model.clauses import Said
from scheduler.core.model.types import Device, Grant, Node, Placement, Reason, Running, Stage

if TYPE_CHECKING:
    from scheduler.core.resources.fleet import Rates, Rows
    from scheduler.core.world.pending import Column, PendingTable
    from scheduler.core.world.read_only import ReadOnlyWorld
    from scheduler.core.world.request_class import FeasibleSet
    from scheduler.core.world.reservation import Option


class Rank:
    """Who is looked at first."""

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        """How urgent a waiting or running stage is; the weighted sum over all policies decides, bigger goes first."""
        raise NotImplementedError

    def ranks(self, pending: PendingTable, slots: Column, world: ReadOnlyWorld) -> Column:
        """The same for these slots of the pending table at once, a number each."""
        return np.array([self.rank(stage, world) for stage in pending.stages[slots]])

    def levels(self, pool: str, order: Column, due: Column, world: ReadOnlyWorld) -> Column:
        """What each stage has, instead of :meth:`ranks`, for how much is owed to its project. ``order`` are slots of
        the pending table, of one pool, as all other policies line them up; ``due`` is what the project of each will
        have received before it, in device-seconds for each unit of its weight. One number for each of them."""
        raise NotImplementedError

    def hysteresis(self, pool: str, world: ReadOnlyWorld) -> float:
        """By how much more a project must be due than another before a promise to it yields, in the unit of ``due``;
        whoever overrides :meth:`levels` has it."""
        raise NotImplementedError

    def guarantees(self, pool: str, world: ReadOnlyWorld) -> set[str]:
        """Ids of stages, waiting or not, that are served from a part of the pool kept for who waits too long."""
        raise NotImplementedError

    def turns_at(self, stage: Stage, world: ReadOnlyWorld) -> float | None:
        """When a running stage will rank otherwise although nothing happens, if it goes on running; seconds."""
        raise NotImplementedError

    def allot(self, stages: Sequence[Stage], world: ReadOnlyWorld) -> Mapping[tuple[str, int], float]:
        """Which stages time sharing should run in which feasible set (a position among those of the stage's request
        class), the most urgent pair with the biggest number. A pair that is not named gets nothing while another can
        use the devices."""
        raise NotImplementedError


class Admit:
    """Who may start, and where at all."""

    def admit(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Reason | None:
        """Why this stage may not start in this way now, whatever is free; ``None`` lets it pass."""
        raise NotImplementedError

    def fits(self, stage: Stage, grants: tuple[Grant, ...], until: float, world: ReadOnlyWorld) -> bool:
        """Whether the stage may hold ``grants`` of one node from now ``until`` then."""
        raise NotImplementedError

    def groups(self, stage: Stage, nodes: Sequence[tuple[Node, tuple[Device, ...]]]) -> list[list[int]]:
        """Sets of nodes (as positions in ``nodes``) inside which a gang may live. Each node comes with the devices on
        it that match the stage's first ask, and stands for all that have the same ones."""
        raise NotImplementedError


class Score:
    """Which place is best."""

    def score(self, node: Node, grants: tuple[Grant, ...], world: ReadOnlyWorld) -> float:
        """How good these grants on this node are; the weighted sum over all policies decides, bigger is better."""
        raise NotImplementedError

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """The same for the places ``rows`` of ``feasible`` at once, all of which it fits. It may look at what is free
        on those nodes, at nothing that changes while they stay the same: it is remembered."""
        from scheduler.core.resources.match import grant

        asks = feasible.alternative.asks
        found = ((feasible.places[row], grant(asks, feasible.places[row], world.ledger)) for row in rows.tolist())
        return np.array([0.0 if grants is None else self.score(at.node, grants, world) for at, grants in found])

    def prefer(self, stage: Stage, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates | None:
        """What each of these places has for this one stage, on top of its score; ``None`` where all are equal to it.
        It is asked anew for every stage."""
        raise NotImplementedError

    def choose(self, stage: Stage, options: Sequence[Option], world: ReadOnlyWorld) -> Option:
        """The best of several ways to run a stage, each with its predicted start and end."""
        raise NotImplementedError


class Victims:
    """Who is stopped, shrunk or moved, and for whom.

    ``by_project`` tells that it matters whose the waiting stage is, not only how important it is. ``factor`` is how
    many times its price an eviction must gain. ``settle_s`` is how soon another look is worth it where nobody tells of
    what may have changed; of one who evacuates, for how long nothing may have started or stopped on the nodes
    concerned before a stage goes from or to them, 0 asking nothing.
    """

    by_project: ClassVar[bool] = False

    @property
    def factor(self) -> float:
        return 1.0

    @property
    def settle_s(self) -> float:
        return 0.0

    def could(self, stage: Stage, world: ReadOnlyWorld) -> bool:
        """Whether anybody could be stopped for a stage of this priority at all; it is asked first and must be cheap."""
        return True

    def victims(
        self, stage: Stage, feasible_sets: Sequence[FeasibleSet], wait_s: float, world: ReadOnlyWorld
    ) -> Eviction | None:
        """Whom to stop so that the stage can start in one of ``feasible_sets``, where that is worth its price.
        ``wait_s`` is how long it would wait otherwise."""
        raise NotImplementedError

    def overtakers(self, pool: str, world: ReadOnlyWorld) -> Sequence[Stage]:
        """Waiting stages of a pool for whom others of their own class may have to stop, the first to be asked for
        first. :meth:`victims` is asked for these alone, when everybody else has had their turn."""
        raise NotImplementedError

    def protects(self, running: Running, world: ReadOnlyWorld) -> bool:
        """Whether this running stage may not be stopped now for another, whatever that would gain."""
        raise NotImplementedError

    def stakes(self, running: Running, size: int, world: ReadOnlyWorld) -> tuple[float, float]:
        """What stopping a running stage to go on with ``size`` nodes costs and gains, in weighted device-seconds."""
        raise NotImplementedError

    def settled_at(self, running: Running, world: ReadOnlyWorld) -> float:
        """From when on a running stage may grow; whoever overrides :meth:`stakes` has it."""
        raise NotImplementedError

    def evacuates(self, running: Running, world: ReadOnlyWorld) -> tuple[Said, float]:
        """Why a running stage should go on elsewhere, in clauses, and what that is worth in weighted device-seconds
        at best; no clause lets it stay."""
        raise NotImplementedError

    def gains(self, running: Running, placement: Placement, world: ReadOnlyWorld) -> float:
        """What going on at ``placement`` is worth, in weighted device-seconds; 0 where it cures nothing. Whoever
        overrides :meth:`evacuates` has it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Eviction:
    """A set of victims that is worth it: none of them could be left out. ``sizes`` says with how many nodes each goes
    on; without it they all stop."""

    option: Option
    victims: tuple[Running, ...]
    prices: tuple[float, ...]
    gain: float
    sizes: tuple[int, ...] = ()


Policy = Rank | Admit | Score | Victims
HOOKS: Final[tuple[type, ...]] = (Rank, Admit, Score, Victims)


def overrides(policy: object, hook: type, method: str) -> bool:
    """Whether a policy has something of its own to say by this method of a hook."""
    return isinstance(policy, hook) and getattr(type(policy), method) is not getattr(hook, method)


def answers(policy: type) -> frozenset[str]:
    """The methods of the hooks that a class of policies overrides."""
    return frozenset(
        name
        for hook in HOOKS
        if issubclass(policy, hook)
        for name in vars(hook)
        if not name.startswith("_") and getattr(policy, name) is not getattr(hook, name)
    )
