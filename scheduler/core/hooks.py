"""The hooks of policies: four classes that a policy derives from and overrides in part.

:class:`Rank` orders the queue, :class:`Admit` decides which stages may start and where at all, :class:`Score` rates
places, and :class:`Victims` chooses stages to stop, shrink or move. A policy may derive from several. Methods that it
does not override are not called (:func:`overrides`). A policy reads the state through
:class:`~scheduler.core.world.read_only.ReadOnlyWorld`: it returns its judgement and changes nothing. What it wants to
try, it tries in a ``trial``, which is undone.
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
    """The order of the queue."""

    def rank(self, stage: Stage, world: ReadOnlyWorld) -> float:
        """Return the urgency of a waiting or running stage. The weighted sum over all policies decides; larger comes
        first."""
        raise NotImplementedError

    def ranks(self, pending: PendingTable, slots: Column, world: ReadOnlyWorld) -> Column:
        """Return the same for these slots of the pending table at once, one number each."""
        return np.array([self.rank(stage, world) for stage in pending.stages[slots]])

    def levels(self, pool: str, order: Column, due: Column, world: ReadOnlyWorld) -> Column:
        """Return, instead of :meth:`ranks`, what each stage gets for how much its project is owed, one number each.

        ``order`` are slots of the pending table, of one pool, in the order of all other policies. ``due`` is what the
        project of each will have received before it, in device-seconds per unit of its weight.
        """
        raise NotImplementedError

    def hysteresis(self, pool: str, world: ReadOnlyWorld) -> float:
        """Return by how much more than another a project must be due before a promise to it yields, in the unit of
        ``due``.

        Overridden together with :meth:`levels`.
        """
        raise NotImplementedError

    def guarantees(self, pool: str, world: ReadOnlyWorld) -> set[str]:
        """Return the ids of stages, waiting or not, that are served from the part of the pool reserved for long
        waits."""
        raise NotImplementedError

    def turns_at(self, stage: Stage, world: ReadOnlyWorld) -> float | None:
        """Return when the rank of a running stage changes if it just goes on running, in seconds since the epoch."""
        raise NotImplementedError

    def allot(self, stages: Sequence[Stage], world: ReadOnlyWorld) -> Mapping[tuple[str, int], float]:
        """Return which stages time sharing should run in which feasible set (a position among those of the stage's
        request class), the most urgent pair with the largest number.

        A pair that is not named gets nothing while another can use the devices.
        """
        raise NotImplementedError


class Admit:
    """Which stages may start, and where at all."""

    def admit(self, stage: Stage, feasible: FeasibleSet, world: ReadOnlyWorld) -> Reason | None:
        """Return why this stage may not start in this feasible set now, whatever is free; ``None`` admits it."""
        raise NotImplementedError

    def fits(self, stage: Stage, grants: tuple[Grant, ...], until: float, world: ReadOnlyWorld) -> bool:
        """Return whether the stage may hold ``grants`` of one node from now ``until`` then."""
        raise NotImplementedError

    def groups(self, stage: Stage, nodes: Sequence[tuple[Node, tuple[Device, ...]]]) -> list[list[int]]:
        """Return the sets of nodes (as positions in ``nodes``) inside one of which a gang may be placed.

        Each node comes with its devices that match the stage's first ask, and stands for all nodes with the same ones.
        """
        raise NotImplementedError


class Score:
    """The rating of places."""

    def score(self, node: Node, grants: tuple[Grant, ...], world: ReadOnlyWorld) -> float:
        """Return how good these grants on this node are. The weighted sum over all policies decides; larger is
        better."""
        raise NotImplementedError

    def scores(self, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates:
        """Return the same for the places ``rows`` of ``feasible`` at once, on all of which it fits.

        The result is cached, so it may depend on what is free on those nodes, but on nothing that changes while they
        stay the same.
        """
        from scheduler.core.resources.match import grant

        asks = feasible.alternative.asks
        found = ((feasible.places[row], grant(asks, feasible.places[row], world.ledger)) for row in rows.tolist())
        return np.array([0.0 if grants is None else self.score(at.node, grants, world) for at, grants in found])

    def prefer(self, stage: Stage, feasible: FeasibleSet, rows: Rows, world: ReadOnlyWorld) -> Rates | None:
        """Return what each of these places has for this one stage, in addition to its score; ``None`` if all are equal.

        Called anew for every stage.
        """
        raise NotImplementedError

    def choose(self, stage: Stage, options: Sequence[Option], world: ReadOnlyWorld) -> Option:
        """Return the best of several ways to run a stage, each with its predicted start and end."""
        raise NotImplementedError


class Victims:
    """Which stages are stopped, shrunk or moved, and for which.

    ``by_project`` tells that the project of the waiting stage matters, not only its priority. ``factor`` is how many
    times its cost a preemption must gain. ``settle_s`` is after how long it is worth looking again where no change is
    announced; for a policy that evacuates, it is for how long nothing may have started or stopped on the nodes
    concerned before a stage moves from or to them (0: no condition).
    """

    by_project: ClassVar[bool] = False

    @property
    def factor(self) -> float:
        return 1.0

    @property
    def settle_s(self) -> float:
        return 0.0

    def could(self, stage: Stage, world: ReadOnlyWorld) -> bool:
        """Return whether any stage could be stopped for one of this priority at all. Called first, so it must be
        cheap."""
        return True

    def victims(
        self, stage: Stage, feasible_sets: Sequence[FeasibleSet], wait_s: float, world: ReadOnlyWorld
    ) -> Eviction | None:
        """Return the stages to stop so that the stage can start in one of ``feasible_sets``, if that is worth the cost.

        ``wait_s`` is how long it would wait otherwise.
        """
        raise NotImplementedError

    def overtakers(self, pool: str, world: ReadOnlyWorld) -> Sequence[Stage]:
        """Return waiting stages of a pool for which others of their own class may be stopped, in the order to try them.

        :meth:`victims` is called for these alone, after all other stages were decided.
        """
        raise NotImplementedError

    def protects(self, running: Running, world: ReadOnlyWorld) -> bool:
        """Return whether this running stage may not be stopped for another now, whatever the gain."""
        raise NotImplementedError

    def stakes(self, running: Running, size: int, world: ReadOnlyWorld) -> tuple[float, float]:
        """Return the cost and the gain of resizing a running stage to ``size`` nodes, in weighted device-seconds."""
        raise NotImplementedError

    def settled_at(self, running: Running, world: ReadOnlyWorld) -> float:
        """Return from when on a running stage may grow. Overridden together with :meth:`stakes`."""
        raise NotImplementedError

    def evacuates(self, running: Running, world: ReadOnlyWorld) -> tuple[Said, float]:
        """Return why a running stage should continue elsewhere, in clauses, and the largest gain in weighted
        device-seconds.

        Without clauses it stays.
        """
        raise NotImplementedError

    def gains(self, running: Running, placement: Placement, world: ReadOnlyWorld) -> float:
        """Return the gain of continuing at ``placement``, in weighted device-seconds; 0 if it solves nothing.

        Overridden together with :meth:`evacuates`.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Eviction:
    """A set of victims that is worth its cost, none of which could be left out.

    ``sizes`` tells with how many nodes each continues; without it they all stop.
    """

    option: Option
    victims: tuple[Running, ...]
    prices: tuple[float, ...]
    gain: float
    sizes: tuple[int, ...] = ()


Policy = Rank | Admit | Score | Victims
HOOKS: Final[tuple[type, ...]] = (Rank, Admit, Score, Victims)


def overrides(policy: object, hook: type, method: str) -> bool:
    """Return whether a policy overrides this method of a hook."""
    return isinstance(policy, hook) and getattr(type(policy), method) is not getattr(hook, method)


def answers(policy: type) -> frozenset[str]:
    """Return the methods of the hooks that a class of policies overrides."""
    return frozenset(
        name
        for hook in HOOKS
        if issubclass(policy, hook)
        for name in vars(hook)
        if not name.startswith("_") and getattr(policy, name) is not getattr(hook, name)
    )
