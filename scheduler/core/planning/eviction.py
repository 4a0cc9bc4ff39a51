"""Preemption: chooses stages to stop or shrink for a waiting stage.

Victims are looked for when the stage is decided, again while it waits for its reservation, for stages behind others of
their class, and at last for stages that will end soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduler.core.explain import why
from scheduler.core.hooks import Victims
from scheduler.core.matching.gate import admitted, gate
from scheduler.core.matching.placement import later_slot
from scheduler.core.model.types import Stage
from scheduler.core.planning.order import StageOrder, in_order
from scheduler.core.planning.pruning import could_evict
from scheduler.core.planning.repair import lift_behind
from scheduler.core.world.request_class import RequestClass
from scheduler.core.world.reservation import TimetableEntry, WaitOutcome
from scheduler.core.world.view import View

# For so many stages with an entry it is asked again whom to stop or to shrink.
ASKED_AGAIN = 16
# For so many when others were entered behind them.
HEADS, FOLLOWERS = 4, 64


def make_room(view: View, outcome: WaitOutcome, queue: StageOrder) -> None:
    """Stop other stages for this one if a policy finds that worth the cost."""
    stage, request = outcome.stage, outcome.request
    reservation = view.reservations.get(stage.id)
    if stage.id in view.evicting:
        outcome.reasons.append(why.preempting(view, view.evicting[stage.id]))
        if reservation:
            view.ledger.hold(reservation.option.grants)
        return
    profile = view.profile(stage.pool)
    if request is None or not could_evict(view, profile, request, stage):
        return
    if reservation and (head := _head_of(view, reservation, queue)):
        view.followers[stage.id] = head
        return
    if _stop_others(view, outcome, profile.evicts, queue):
        return
    request.evictions_refused.add(stage.project if profile.reclaims else "")


def ask_again(view: View, queue: StageOrder) -> None:
    """Look again for victims for the first stages with a reservation.

    When the reservation was made, possible victims may have been protected by their minimum run time, or an elastic
    stage may have been resized too recently. Skips a stage with a newcomer before it in the queue.
    """
    pending, at = view.pending, view.positions(queue.slots)
    is_new = ~pending.is_blocked[queue.slots]
    is_new[at[[pending.slot[name] for name in view.reservations]]] = False
    for stage in in_order(view, view.reservations.keys() - view.owners, queue)[:ASKED_AGAIN]:
        if stage.id not in view.reservations:
            continue  # lifted for one before it
        slot, profile = pending.slot[stage.id], view.profile(stage.pool)
        was_safe = view.victim_index.were_safe(view.reservations[stage.id].promise.made_at, view.now)
        policies = profile.evicts if was_safe else profile.resizes
        before = queue.slots[: at[slot]]
        if is_new[: at[slot]][pending.pool[before] == pending.pool[slot]].any():
            continue
        _ask(view, stage, policies, queue)


def ask_for_followers(view: View, queue: StageOrder, settle: Callable[[View, Stage, StageOrder], None]) -> None:
    """Look for victims for stages whose reservation follows one of their own class, and first for the stages that they
    follow.

    The gain of a stop counts all stages that benefit. Stages that lose their reservation are decided again by
    ``settle``.
    """
    heads = in_order(view, set(view.followers.values()), queue)[:HEADS]
    for stage in (*heads, *in_order(view, view.followers, queue)[:FOLLOWERS]):
        if stage.id not in view.reservations or stage.id in view.owners:
            continue
        before = set(view.reservations)
        _ask(view, stage, view.profile(stage.pool).evicts, queue)
        _settle_lifted(view, before - {stage.id}, queue, settle)


def let_overtake(view: View, queue: StageOrder, settle: Callable[[View, Stage, StageOrder], None]) -> None:
    """Look for victims of the same class for stages that will end soon. Stages that lose their reservation are
    decided again."""
    for pool in sorted(view.pools):
        for policy in view.profile(pool).overtakes:
            for stage in policy.overtakers(pool, view):
                before = set(view.reservations)
                _ask(view, stage, [policy], queue)
                _settle_lifted(view, before - {stage.id}, queue, settle)


def _settle_lifted(
    view: View, before: set[str], queue: StageOrder, settle: Callable[[View, Stage, StageOrder], None]
) -> None:
    """Decide again for the stages that had a reservation ``before`` and lost it, and for those that lose theirs in
    turn."""
    settled: set[str] = set()
    while lifted := before - view.reservations.keys() - settled:
        first = in_order(view, lifted, queue)[0]
        before |= view.reservations.keys()
        settle(view, first, queue)
        settled.add(first.id)


def _wait_s(view: View, stage: Stage, request: RequestClass) -> float:
    """Return how long the stage would wait without preemption, up to the horizon of the timetable."""
    profile = view.profile(stage.pool)
    if stage.id in view.reservations:
        return min(profile.horizon_s, view.reservations[stage.id].option.start_at - view.now)
    lengths = [(feasible, view.length_s(stage, feasible, profile.plan_with)) for feasible in request.feasible_sets]
    slots = [later_slot(view, stage, feasible, length, view.now) for feasible, length in lengths]
    return min([profile.horizon_s, *(slot.start_at - view.now for slot in slots if slot)])


def _head_of(view: View, reservation: TimetableEntry, queue: StageOrder) -> str:
    """Return the stage of the same class that is before this one in the queue and has the first reservation on one
    of its devices."""
    held, at = {one.device for one in reservation.option.grants}, view.positions(queue.slots)
    slot, stage = view.pending.slot, reservation.stage
    before = [
        one
        for one in view.reservations.values()
        if one.option.start_at < reservation.option.start_at
        and one.stage.priority == stage.priority
        and at[slot[one.stage.id]] < at[slot[stage.id]]
        and any(grant.device in held for grant in one.option.grants)
    ]
    return min(before, key=lambda one: (one.option.start_at, one.stage.id)).stage.id if before else ""


def _ask(view: View, stage: Stage, policies: Iterable[Victims], queue: StageOrder) -> None:
    """Stop other stages for a waiting stage if it may start now and a policy finds that worth the cost."""
    outcome = WaitOutcome(stage, request=view.request_class(stage))
    if gate(view, outcome) != view.now or not outcome.request or outcome.request.impossible:
        return
    if admitted(view, outcome, outcome.request) and _stop_others(view, outcome, policies, queue):
        view.outcomes[stage.id] = outcome


def _stop_others(view: View, outcome: WaitOutcome, policies: Iterable[Victims], queue: StageOrder) -> bool:
    """Stop the victims of the first policy that finds that worth the cost. Return whether there was one."""
    stage = outcome.stage
    assert outcome.request is not None, "it was looked at before"
    feasible_sets, wait_s = outcome.request.feasible_sets, None
    for policy in policies:
        if not policy.could(stage, view):
            continue
        if wait_s is None:
            # To know how long it will wait takes a search through the timetable. Whom nobody would be stopped for
            # however long that is, for them it need not be known.
            longest_s = view.profile(stage.pool).horizon_s
            if stage.id not in view.reservations and not policy.victims(stage, feasible_sets, longest_s, view):
                continue
            wait_s = _wait_s(view, stage, outcome.request)
        eviction = policy.victims(stage, feasible_sets, wait_s, view)
        if eviction is not None and not view.may_meet(stage, eviction.option):
            if stage.id in view.reservations:
                view.unreserve(stage.id)
            view.evict(stage, eviction)
            lift_behind(view, stage, queue)
            outcome.reasons.append(why.preempting(view, eviction.victims))
            return True
    return False
