"""Stages that should not stay where they are: each goes on elsewhere, by stop, checkpoint and start.

It works when everybody who waits has had their turn, on what nobody else can use now and what no entry of the timetable
would miss. A policy says why a stage should leave and what that is worth; without a place that is worth it it stays.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scheduler.core.hooks import Victims
from scheduler.core.matching import room
from scheduler.core.model.clauses import Said, say
from scheduler.core.model.lifecycle import Health, State
from scheduler.core.model.types import Grant, Move, Placement, Running
from scheduler.core.planning.resize import is_movable
from scheduler.core.world import price
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.service import as_waiting
from scheduler.core.world.view import Option, View, WaitOutcome, grants_of

Finds = Callable[[View, WaitOutcome, FeasibleSet, float], Option | None]

# At most so many leave in one cycle, so that the cluster does not shake.
PER_CYCLE = 8


def evacuate(view: View, finds: Finds) -> None:
    """Note the moves of this cycle. ``finds`` is the engine's search for a place now."""
    candidates = _candidates(view)
    stopping = _stopping(view) if candidates else set()
    for one in candidates:
        if len(view.moves) >= PER_CYCLE:
            return
        policy, said, gain = _wish(view, one)
        lost = price.price(one, view.now)
        if not said or gain <= lost or not _is_settled(view, one.placement, policy.settle_s, stopping):
            continue
        option = another_place(view, one, finds)
        if option is None or not _is_settled(view, option.placement, policy.settle_s, stopping):
            continue
        gain = policy.gains(one, option.placement, view)
        if gain > lost:
            view.ledger.hold(option.grants)
            view.moves.append(Move(one.id, option.placement, say(said), round(lost, 6), round(gain, 6), said))
            stopping |= {*one.placement.nodes, *option.placement.nodes}


def another_place(view: View, one: Running, finds: Finds) -> Option | None:
    """Where a running stage could go on at once without a device that ails; it still holds what it has."""
    if not one.alternatives:
        return None
    stage = as_waiting(one)
    best: Option | None = None
    for feasible in view.request_class(stage).feasible_sets:
        feasible.forget()
        found = finds(
            view, WaitOutcome(stage), feasible, view.length_s(stage, feasible, view.profile(one.pool).plan_with)
        )
        feasible.forget()
        if found is not None and not _ails(view, found.grants) and (best is None or found.end_at < best.end_at):
            best = found
    return best


def _candidates(view: View) -> list[Running]:
    """The running stages about which some policy of their pool may have something to say: those on nodes with a device
    that ails or with more to do than they can, the most urgent first."""
    pools = {name for name in view.pools if view.profile(name).evacuates}
    troubled = room.columns(view.fleet).troubled
    if not pools or not troubled.any():
        return []
    slots = np.flatnonzero((view.victim_index.node >= 0) & troubled[view.victim_index.node])
    found = {one.id: one for one in view.victim_index.stages[slots] if one.pool in pools and is_movable(one, view)}
    return sorted(found.values(), key=lambda one: (-one.priority, _standing(view, one), one.id))


def _standing(view: View, one: Running) -> int:
    """How badly a stage stands: 0 on a device that is unhealthy, 1 on one that warns, 2 on a node that is hot."""
    if not _ails(view, grants_of(one)):
        return 2
    held = (view.ledger.devices.get(grant.device) for grant in grants_of(one))
    return 0 if any(device is not None and device.health is Health.UNHEALTHY for device in held) else 1


def _wish(view: View, one: Running) -> tuple[Victims, Said, float]:
    """Which policy says most strongly that the stage should leave, why, and what that is worth in weighted
    device-seconds at best."""
    wishes = ((policy, *policy.evacuates(one, view)) for policy in view.profile(one.pool).evacuates)
    return max(wishes, key=lambda wish: wish[2])


def _stopping(view: View) -> set[str]:
    """The nodes on which something stops: what they have to do is not what they will have."""
    return {node for one in view.running.values() if one.state is State.STOPPING for node in one.placement.nodes}


def _is_settled(view: View, placement: Placement, settle_s: float, stopping: set[str]) -> bool:
    """Whether nothing stops on these nodes, and nothing began there within ``settle_s``."""
    if settle_s <= 0:
        return True
    if not stopping.isdisjoint(placement.nodes):
        return False
    if any(not set(placement.nodes).isdisjoint(option.placement.nodes) for option in view.starts.values()):
        return False
    rows = [view.fleet.node_row[name] for name in placement.nodes if name in view.fleet.node_row]
    fresh = (view.victim_index.node >= 0) & (view.victim_index.began > view.now - settle_s)
    return not np.isin(view.victim_index.node[fresh], rows).any()


def _ails(view: View, grants: tuple[Grant, ...]) -> bool:
    devices = view.ledger.devices
    return any(one.device in devices and devices[one.device].ails for one in grants)
