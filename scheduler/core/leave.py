"""Stages that should not stay where they are: each goes on elsewhere, by stop, checkpoint and start.

It works when everybody who waits has had their turn, on what nobody else can use now and what no entry of the timetable
would miss. A policy says why a stage should leave and what that is worth; without a place that is sound it stays.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core import price, room
from scheduler.core.clauses import Said, say
from scheduler.core.service import as_waiting
from scheduler.core.shape import Way
from scheduler.core.stretch import is_movable
from scheduler.core.types import Grant, Move, Running
from scheduler.core.view import Option, Outcome, View, grants_of

Finds = Callable[[View, Outcome, Way, float], Option | None]

# At most so many leave in one cycle, so that the cluster does not shake.
PER_CYCLE = 8


def leave(view: View, finds: Finds) -> None:
    """Note the moves of this cycle. ``finds`` is the engine's search for a place now."""
    for one in _candidates(view):
        if len(view.moves) >= PER_CYCLE:
            return
        said, gain = _wish(view, one)
        lost = price.price(one, view.now)
        if not said or gain <= lost:
            continue
        option = another_place(view, one, finds)
        if option is not None:
            view.ledger.hold(option.grants)
            view.moves.append(Move(one.id, option.placement, say(said), round(lost, 6), round(gain, 6), said))


def another_place(view: View, one: Running, finds: Finds) -> Option | None:
    """Where a running stage could go on at once without a device that warns; it still holds what it has."""
    if not one.alternatives:
        return None
    stage = as_waiting(one)
    best: Option | None = None
    for way in view.shape(stage).ways:
        way.forget()
        found = finds(view, Outcome(stage), way, view.length_s(stage, way, view.profile(one.pool).plan_with))
        way.forget()
        if found is not None and not _warned(view, found.grants) and (best is None or found.end_at < best.end_at):
            best = found
    return best


def _candidates(view: View) -> list[Running]:
    """The running stages about which some policy of their pool may have something to say, the most urgent first."""
    pools = {name for name in view.pools if view.profile(name).leaves}
    if not pools or not room.columns(view.fleet).warned.any():
        return []
    found = [one for one in view.running.values() if one.pool in pools and _warned(view, grants_of(one))]
    return sorted((one for one in found if is_movable(one, view)), key=lambda one: (-one.priority, one.id))


def _wish(view: View, one: Running) -> tuple[Said, float]:
    """Why the stage should leave, and what that is worth in weighted device-seconds; the strongest wish counts."""
    wishes = [policy.leaves(one, view) for policy in view.profile(one.pool).leaves]
    return max(wishes, key=lambda wish: wish[1], default=((), 0.0))


def _warned(view: View, grants: tuple[Grant, ...]) -> bool:
    devices = view.ledger.devices
    return any(one.device in devices and devices[one.device].warned for one in grants)
