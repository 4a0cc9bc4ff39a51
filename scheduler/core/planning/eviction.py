"""Whom to stop or to shrink for a stage: at its turn, again while it waits for its entry, for those behind it, and in
the end for who will soon be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scheduler.core.explain import why as explain
from scheduler.core.matching.gate import admitted, gate
from scheduler.core.matching.placement import later_slot
from scheduler.core.model.types import Stage
from scheduler.core.planning.order import Queue, in_order
from scheduler.core.planning.pruning import could_evict
from scheduler.core.planning.repair import lift_behind
from scheduler.core.world.request_class import Shape
from scheduler.core.world.reservation import Booking, Outcome
from scheduler.core.world.view import View

# For so many stages with an entry it is asked again whom to stop or to shrink.
ASKED_AGAIN = 16
# For so many when others were entered behind them.
HEADS, FOLLOWERS = 4, 64


def make_room(view: View, outcome: Outcome, queue: Queue) -> None:
    """Stop others for this stage, where a policy finds that worth its price."""
    stage, shape = outcome.stage, outcome.shape
    booking = view.booked.get(stage.id)
    if stage.id in view.evicting:
        outcome.reasons.append(explain.preempting(view, view.evicting[stage.id]))
        if booking:
            view.ledger.hold(booking.option.grants)
        return
    profile = view.profile(stage.pool)
    if shape is None or not could_evict(view, profile, shape, stage):
        return
    if booking and (head := _head_of(view, booking, queue)):
        view.followers[stage.id] = head
        return
    wait_s = _wait_s(view, stage, shape)
    for policy in profile.evicts:
        if not policy.could(stage, view):
            continue
        eviction = policy.victims(stage, shape.ways, wait_s, view)
        if eviction is not None and not view.may_meet(stage, eviction.option):
            if booking:
                view.unbook(stage.id)
            view.evict(stage, eviction)
            lift_behind(view, stage, queue)
            outcome.reasons.append(explain.preempting(view, eviction.victims))
            return
    shape.evictions_refused.add(stage.project if profile.reclaims else "")


def ask_again(view: View, queue: Queue) -> None:
    """Ask again whom to stop or shrink for those at the head of the queue that have an entry: when it was made, an
    elastic stage may have had its size for too short to give back, and others may have been within their minimum run
    time. Nobody is served before a newcomer that stands before it."""
    line, at = view.line, view.positions(queue.slots)
    is_new = ~line.is_blocked[queue.slots]
    is_new[at[[line.slot[name] for name in view.booked]]] = False
    for stage in in_order(view, view.booked.keys() - view.owners, queue)[:ASKED_AGAIN]:
        if stage.id not in view.booked:
            continue  # lifted for one before it
        slot, profile = line.slot[stage.id], view.profile(stage.pool)
        was_safe = view.holders.were_safe(view.booked[stage.id].promise.made_at, view.now)
        policies = profile.evicts if was_safe else profile.resizes
        before = queue.slots[: at[slot]]
        if is_new[: at[slot]][line.pool[before] == line.pool[slot]].any():
            continue
        _ask(view, stage, policies, queue)


def ask_for_followers(view: View, queue: Queue, settle: Callable[[View, Stage, Queue], None]) -> None:
    """Ask whom to stop for those that were entered behind others of their class: first for the others, as what a stop
    gains counts all who follow, then for themselves. Whoever loses an entry by that is settled anew by ``settle``."""
    heads = in_order(view, set(view.followers.values()), queue)[:HEADS]
    for stage in (*heads, *in_order(view, view.followers, queue)[:FOLLOWERS]):
        if stage.id not in view.booked or stage.id in view.owners:
            continue
        before = set(view.booked)
        _ask(view, stage, view.profile(stage.pool).evicts, queue)
        for other in in_order(view, before - view.booked.keys() - {stage.id}, queue):
            settle(view, other, queue)


def let_overtake(view: View, queue: Queue, settle: Callable[[View, Stage, Queue], None]) -> None:
    """Ask whom of their own class to stop for those who will soon be done. Who loses an entry by that is settled
    anew."""
    for pool in sorted(view.pools):
        for policy in view.profile(pool).overtakes:
            for stage in policy.overtakers(pool, view):
                before = set(view.booked)
                _ask(view, stage, [policy], queue)
                for other in in_order(view, before - view.booked.keys() - {stage.id}, queue):
                    settle(view, other, queue)


def _wait_s(view: View, stage: Stage, shape: Shape) -> float:
    """How long a stage that may start will wait if nobody is stopped for it, as far as the timetable reaches."""
    profile = view.profile(stage.pool)
    if stage.id in view.booked:
        return min(profile.horizon_s, view.booked[stage.id].option.start_at - view.now)
    lengths = [(way, view.length_s(stage, way, profile.plan_with)) for way in shape.ways]
    slots = [later_slot(view, stage, way, length, view.now) for way, length in lengths]
    return min([profile.horizon_s, *(slot.start_at - view.now for slot in slots if slot)])


def _head_of(view: View, booking: Booking, queue: Queue) -> str:
    """Who of the same class has the first entry on a device of ``booking``, and stands before it in the queue."""
    held, at = {one.device for one in booking.option.grants}, view.positions(queue.slots)
    slot, stage = view.line.slot, booking.stage
    before = [
        one
        for one in view.booked.values()
        if one.option.start_at < booking.option.start_at
        and one.stage.priority == stage.priority
        and at[slot[one.stage.id]] < at[slot[stage.id]]
        and any(grant.device in held for grant in one.option.grants)
    ]
    return min(before, key=lambda one: (one.option.start_at, one.stage.id)).stage.id if before else ""


def _ask(view: View, stage: Stage, policies: Iterable[Any], queue: Queue) -> None:
    """Stop others for a stage that waits, where one of the policies finds that worth its price."""
    outcome = Outcome(stage, shape=view.shape(stage))
    if gate(view, outcome) != view.now or not outcome.shape or outcome.shape.impossible:
        return
    wait_s = _wait_s(view, stage, outcome.shape)
    for policy in policies:
        if not policy.could(stage, view) or not admitted(view, outcome, outcome.shape):
            continue
        eviction = policy.victims(stage, outcome.shape.ways, wait_s, view)
        if eviction is not None and not view.may_meet(stage, eviction.option):
            if stage.id in view.booked:
                view.unbook(stage.id)
            view.evict(stage, eviction)
            lift_behind(view, stage, queue)
            outcome.reasons.append(explain.preempting(view, eviction.victims))
            view.outcomes[stage.id] = outcome
            return
