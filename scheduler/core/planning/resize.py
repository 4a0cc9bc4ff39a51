"""Resizes of elastic stages: growth onto idle nodes, and shrinking away from draining nodes.

It runs after all waiting stages were decided, and uses only capacity that no waiting stage can use now and no
reservation needs. A stage that starts in this cycle gets more nodes at once. A running stage is told to stop and
continue with another number of nodes if a policy finds that worth the cost. Which elastic stages shrink for a waiting
stage is decided by the policy ``elastic``, before any stage is preempted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

from scheduler.core.matching.gate import over_budget
from scheduler.core.model.clauses import clause, say, several
from scheduler.core.model.lifecycle import NodeState, State
from scheduler.core.model.types import Grant, Placement, Resize, Running, Stage
from scheduler.core.resources import elastic
from scheduler.core.resources.elastic import Elastic, ScalingCurve, Sizing
from scheduler.core.world import price
from scheduler.core.world.read_only import ReadOnlyWorld
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.service import as_waiting
from scheduler.core.world.view import Option, View, WaitOutcome, grants_of

Finds = Callable[[View, WaitOutcome, FeasibleSet, float, Iterable[int]], Option | None]

LEAVING: Final = frozenset({NodeState.DRAINING, NodeState.DRAINED})
# Below this scaling another node is nearly useless, and is left to other stages.
LEAST_SCALING: Final = 0.2
# Weights do not ask for the curve.
ANY: Final = ScalingCurve({1: 1.0})


def resize(view: View, finds: Finds) -> None:
    """Grow the stages that start in this cycle and resize running ones. ``finds`` searches for a place now among
    given places."""
    if any(view.waiting[name].most_nodes for name in view.starts):
        _widen(view, finds)
    if view.elastic:
        _resize(view, finds)


def left_s(one: Running, world: ReadOnlyWorld) -> float:
    """Return for how long a running stage will probably continue at its present size."""
    return world.predicted_end(one, world.profile(one.pool).plan_with) - world.now


def is_movable(one: Running, world: ReadOnlyWorld) -> bool:
    """Return whether a running stage may be told to continue with another number of nodes."""
    return (
        one.state is State.RUNNING
        and one.preemptible
        and one.evicted_for is None
        and one.id not in world.chosen_victims
        and all(one.id != each.victim for each in world.resizes)
        and world.now - one.started_at >= one.min_runtime_s
        and not any(policy.protects(one, world) for policy in world.profile(one.pool).protects)
    )


def _widen(view: View, finds: Finds) -> None:
    """Give the starting stages more nodes, one at a time, each to the stage that gains most by it."""
    line: list[tuple[float, str]] = []
    for name, option in view.starts.items():
        _offer(line, view, view.waiting[name], option)
    while line:
        stage = view.waiting[heapq.heappop(line)[1]]
        option = view.starts[stage.id]
        found = _one_more(view, stage, option.feasible, option.placement.nodes, option.grants, finds)
        if found is not None:
            view.widen(stage, _joined(view, stage, option, found), found.grants)
            _offer(line, view, stage, view.starts[stage.id])


def _offer(line: list[tuple[float, str]], view: View, stage: Stage, option: Option) -> None:
    size = len(option.placement.nodes)
    if size < stage.most_nodes and stage.scaling >= LEAST_SCALING:
        length = view.length_s(stage, option.feasible, view.profile(stage.pool).plan_with)
        heapq.heappush(line, (-_worth(stage, stage.nodes, size, length), stage.id))


def _worth(stage: Stage | Running, least: int, size: int, left: float) -> float:
    """Return what one more node is worth to a stage of this size (see :mod:`scheduler.core.resources.elastic`)."""
    more = elastic.faster(least, size + 1, stage.scaling) - elastic.faster(least, size, stage.scaling)
    one = Elastic(stage.id, ANY, weight=price.weight(stage.priority), left_s=left)
    return round(more * elastic.weight(one, Sizing()), 12)


def _joined(view: View, stage: Stage, option: Option, more: Option) -> Option:
    """Return the option with the nodes of ``more`` as its last ranks."""
    one, other = option.placement, more.placement
    placement = Placement(one.alternative, one.nodes + other.nodes, one.grants + other.grants)
    length = view.length_s(stage, option.feasible, view.profile(stage.pool).plan_with, len(placement.nodes))
    return replace(option, end_at=view.now + length, placement=placement)


def _one_more(
    view: View, stage: Stage, feasible: FeasibleSet, used: tuple[str, ...], held: tuple[Grant, ...], finds: Finds
) -> Option | None:
    """Return a place for one more rank on a node not in ``used``, if the stage may have it and it fits there now."""
    size, profile = len(used) + 1, view.profile(stage.pool)
    if size > stage.most_nodes:
        return None
    view.refresh(feasible, profile)
    rows = {view.fleet.node_row[name] for name in used if name in view.fleet.node_row}
    among = [line for line in np.flatnonzero(feasible.fits).tolist() if int(feasible.places.nodes[line]) not in rows]
    if not among or not _admits(view, replace(stage, nodes=size), feasible, held):
        return None
    length = view.length_s(stage, feasible, profile.plan_with, size)
    # What the walk has learned holds for all ranks at once, not for one more.
    refused_s, feasible.refused_s = feasible.refused_s, float("inf")
    barred, feasible.barred = feasible.barred, []
    try:
        return finds(view, WaitOutcome(replace(stage, nodes=1)), feasible, length, among)
    finally:
        feasible.refused_s, feasible.barred = refused_s, barred


def _admits(view: View, stage: Stage, feasible: FeasibleSet, held: tuple[Grant, ...]) -> bool:
    """Return whether every policy admits the stage at this size; what it holds already is not counted twice."""
    if over_budget(view, stage, feasible):
        return False
    policies = view.profile(stage.pool).admits
    if not policies:
        return True
    with _without(view, stage, held):
        return all(policy.admit(stage, feasible, view) is None for policy in policies)


@contextmanager
def _without(view: View, stage: Stage, held: tuple[Grant, ...]) -> Iterator[None]:
    """Context manager: the view as if the stage neither ran nor started."""
    starts, running, counted = view.starts, view.running.pop(stage.id, None), view.held.copy()
    view.starts = {name: option for name, option in starts.items() if name != stage.id}
    view.held.count(stage.project, held, view.ledger.devices, -1)
    try:
        yield
    finally:
        view.starts, view.held = starts, counted
        if running is not None:
            view.running[stage.id] = running


def _resize(view: View, finds: Finds) -> None:
    """Tell running stages to leave draining nodes, and to grow onto idle nodes where that is worth the cost.

    They take the nodes when they start again; afterwards the ledger shows the nodes as free.
    """
    mark = view.ledger.checkpoint()
    line: list[tuple[float, str]] = []
    seen: dict[object, list[FeasibleSet]] = {}
    for name in sorted(view.elastic):
        one = view.running[name]
        policies = view.profile(one.pool).resizes
        if not policies or not is_movable(one, view):
            continue
        drains = _draining(view, one)
        if drains is None:
            continue  # its load there is unknown
        settled_at = policies[0].settled_at(one, view)
        if view.waiting and len(one.placement.nodes) > one.least_nodes:
            view.wake(one.started_at + policies[0].settle_s)  # from then on it shrinks for its own class
        if drains or (settled_at <= view.now and _has_room(view, one, seen)):
            size = len(one.placement.nodes)
            heapq.heappush(line, (-_worth(one, one.least_nodes, size, left_s(one, view)), name))
        else:
            view.wake(settled_at)
    while line:
        one = view.running[heapq.heappop(line)[1]]
        drains = _draining(view, one)
        if drains or _has_room(view, one, seen):
            _resize_one(view, one, drains or (), view.profile(one.pool).resizes[0], finds)
    view.ledger.rollback(mark)


def _draining(view: View, one: Running) -> tuple[str, ...] | None:
    """Return which of its nodes are draining; ``None`` if one of its nodes is out of contact."""
    states = [view.nodes[name].state if name in view.nodes else NodeState.LOST for name in one.placement.nodes]
    if any(state not in LEAVING and state is not NodeState.READY for state in states):
        return None
    return tuple(name for name, state in zip(one.placement.nodes, states, strict=True) if state in LEAVING)


def _has_room(view: View, one: Running, seen: dict[object, list[FeasibleSet]]) -> bool:
    """Return whether it may have more nodes and one more rank would fit on some node now.

    ``seen`` has the feasible sets that were checked before in this cycle.
    """
    if len(one.placement.nodes) >= one.most_nodes:
        return False
    where = (one.pool, one.pinned, one.avoid, one.only, one.site, one.mounts, one.within, one.within_required)
    key = (id(one.alternatives), where, one.least_nodes, one.kind, one.precision)
    feasible_sets = seen.get(key)
    if feasible_sets is None:  # stages that ask alike share their alternatives
        feasible_sets = seen[key] = view.request_class(_asked(one)).feasible_sets
    profile = view.profile(one.pool)
    for feasible in feasible_sets:
        view.refresh(feasible, profile)
    return any(feasible.count for feasible in feasible_sets)


def _resize_one(view: View, one: Running, drains: tuple[str, ...], policy: Any, finds: Finds) -> None:
    if drains and not (one.checkpoints or one.saves_on_stop):
        view.wake(view.now + policy.settle_s)
        return  # all its work would be lost: it stays until it has a checkpoint or ends
    size = len(one.placement.nodes)
    stays = tuple(name for name in one.placement.nodes if name not in drains)
    mark = view.ledger.checkpoint()
    more = _grown(view, one, stays, finds)
    wide = len(stays) + len(more)
    if drains:
        if wide >= one.least_nodes:
            lost, _ = policy.stakes(one, wide, view)
            names = ", ".join(view.nodes[name].name for name in drains)
            said = (clause(several(len(drains), "NodeDrains", "NodesDrain"), nodes=names),)
            view.resizes.append(Resize(one.id, size, wide, say(said), round(lost, 6), 0.0, said=said))
            return
    elif more:
        lost, won = policy.stakes(one, wide, view)
        if won > lost:
            names = ", ".join(view.nodes[name].name for name in more)
            said = (clause(several(len(more), "NodeIdle", "NodesIdle"), nodes=names),)
            view.resizes.append(Resize(one.id, size, wide, say(said), round(lost, 6), round(won, 6), said=said))
            return
        view.wake(view.now + policy.settle_s)  # a newer checkpoint makes it cheaper, but is no event
    view.ledger.rollback(mark)


def _asked(one: Running) -> Stage:
    """Return a running elastic stage in the form of a waiting one."""
    stage = as_waiting(one)
    return replace(stage, nodes=one.least_nodes, most_nodes=one.most_nodes, scaling=one.scaling, pinned=one.pinned)


def _grown(view: View, one: Running, stays: tuple[str, ...], finds: Finds) -> tuple[str, ...]:
    """Return the nodes that it could get in addition to those on which it stays, and claim them in the ledger."""
    stage = _asked(one)
    for feasible in _feasible_sets(view, stage, one, stays):
        mark = view.ledger.checkpoint()
        more: list[str] = []
        held = grants_of(one)
        while len(stays) + len(more) < one.most_nodes:
            found = _one_more(view, stage, feasible, (*stays, *more), held, finds)
            if found is None:
                break
            view.ledger.claim(found.grants)
            more += found.placement.nodes
        if len(stays) + len(more) >= one.least_nodes:
            return tuple(more)
        view.ledger.rollback(mark)
    return ()


def _feasible_sets(view: View, stage: Stage, one: Running, stays: tuple[str, ...]) -> list[FeasibleSet]:
    """Return the feasible set of the alternative that it runs; all of them if none of its nodes stays."""
    feasible_sets = view.request_class(stage).feasible_sets
    if not stays:
        return feasible_sets
    row = view.fleet.node_row[stays[0]]
    own = (feasible for feasible in feasible_sets if feasible.alternative.index == one.placement.alternative)
    return [feasible for feasible in own if feasible.line_of(row) is not None][:1]
