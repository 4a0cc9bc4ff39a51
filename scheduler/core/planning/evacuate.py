"""Evacuation: moves of running stages away from bad devices and overloaded nodes, by stop, checkpoint and start
elsewhere.

It runs after all waiting stages were decided, and uses only capacity that no waiting stage can use now and no
reservation needs. A policy decides whether a stage should leave and what that is worth. Without a new place that is
worth the cost of the move, the stage stays.
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
    """Add the moves of this cycle to the view. ``finds`` is the engine's search for a place now."""
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
    """Return where a running stage could continue now without using a bad device, while it still holds its own
    devices."""
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
    """Return the movable running stages on nodes with a bad device or an overload, highest priority first."""
    pools = {name for name in view.pools if view.profile(name).evacuates}
    troubled = room.columns(view.fleet).troubled
    if not pools or not troubled.any():
        return []
    slots = np.flatnonzero((view.victim_index.node >= 0) & troubled[view.victim_index.node])
    found = {one.id: one for one in view.victim_index.stages[slots] if one.pool in pools and is_movable(one, view)}
    return sorted(found.values(), key=lambda one: (-one.priority, _standing(view, one), one.id))


def _standing(view: View, one: Running) -> int:
    """Return how urgent it is that a stage leaves: 0 on an unhealthy device, 1 on a degraded one, 2 on an overloaded
    node."""
    if not _ails(view, grants_of(one)):
        return 2
    held = (view.ledger.devices.get(grant.device) for grant in grants_of(one))
    return 0 if any(device is not None and device.health is Health.UNHEALTHY for device in held) else 1


def _wish(view: View, one: Running) -> tuple[Victims, Said, float]:
    """Return the policy that values it most that the stage leaves, its reason, and the largest gain in weighted
    device-seconds."""
    wishes = ((policy, *policy.evacuates(one, view)) for policy in view.profile(one.pool).evacuates)
    return max(wishes, key=lambda wish: wish[2])


def _stopping(view: View) -> set[str]:
    """Return the nodes with a stopping stage; their load is about to change."""
    return {node for one in view.running.values() if one.state is State.STOPPING for node in one.placement.nodes}


def _is_settled(view: View, placement: Placement, settle_s: float, stopping: set[str]) -> bool:
    """Return whether no stage is stopping on these nodes and none started there in the last ``settle_s`` seconds."""
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
