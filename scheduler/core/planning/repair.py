"""Repair of the timetable: which reservations are kept, removed, yielded to other projects or moved forward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler.core.matching.gate import admitted, gate, is_closed, is_gated
from scheduler.core.matching.placement import STILL_S, clear_option, later_option, now_slot
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Promise, Stage
from scheduler.core.planning.order import StageOrder
from scheduler.core.world.pending import Column
from scheduler.core.world.request_class import FeasibleSet, RequestClass
from scheduler.core.world.reservation import Option, TimetableEntry, WaitOutcome
from scheduler.core.world.view import View

# So many entries of a class are looked at again in one cycle because shares have drifted.
YIELDS = 32


def lift_overtaken(view: View) -> None:
    """Remove reservations that can no longer be kept.

    Their start has passed, their devices are taken, the stages they need are not done, or they had to be placed
    elsewhere than promised. Their stages are decided again at their position in the queue.
    """
    closed = {name for name, pool in view.pools.items() if is_closed(pool)}
    may_be_gated, slot = view.pending.is_gated, view.pending.slot
    for name, reservation in list(view.reservations.items()):
        stage, promise = reservation.stage, reservation.promise
        if (
            promise.start_at <= view.now
            or reservation.option.start_at != promise.start_at
            or name in view.owners
            or view.may_meet(stage, reservation.option)
            or ((may_be_gated[slot[name]] or stage.pool in closed) and is_gated(view, stage))
        ):
            lift(view, name)
    for name in view.table.owners(view.table.oversold) & view.reservations.keys():
        lift(view, name)


def lift(view: View, name: str) -> None:
    """Remove a reservation; its stage is decided again at its position in the queue."""
    view.free(view.unreserve(name).option.grants)
    view.lifted.add(name)


def lift_lower(view: View, stage: Stage, queue: StageOrder) -> bool:
    """Remove reservations of lower classes behind ``stage`` in the queue. Return whether there were any."""
    entries = view.entries.get(stage.pool, {})
    if not any(count for priority, count in entries.items() if priority < stage.priority):
        return False
    at = view.positions(queue.slots)
    mine = at[view.pending.slot[stage.id]]
    lower = [
        name
        for name, one in view.reservations.items()
        if one.stage.priority < stage.priority
        and at[view.pending.slot[name]] > mine
        and one.stage.pool == stage.pool
        and name not in view.owners
    ]
    for name in lower:
        lift(view, name)
    return bool(lower)


def lift_behind(view: View, stage: Stage, queue: StageOrder) -> None:
    """Remove the reservations behind ``stage`` that overlap its new one."""
    clashing = view.table.owners(view.table.oversold) & view.reservations.keys() - {stage.id}
    if clashing:
        at = view.positions(queue.slots)
        mine = at[view.pending.slot[stage.id]]
        for name in sorted(clashing):
            if at[view.pending.slot[name]] > mine:
                lift(view, name)


def keep(view: View, outcome: WaitOutcome, promise: Promise, earliest: float) -> bool:
    """Return whether the promised reservation is kept, or the stage starts because its time has come."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    feasible = view.feasible_set_of(outcome.request, promise) if outcome.request else None
    if feasible is None:  # a device of it can no longer be used
        return False
    length = view.length_s(stage, feasible, profile.plan_with)
    start = max(promise.start_at, view.now, earliest)
    option = Option(feasible, start, start + length, promise.placement)
    due = start <= view.now and not outcome.reasons
    meets = view.may_meet(stage, option)
    is_free = due and view.ledger.has(option.grants) and not meets
    if profile.timetable == "repair":
        stands = start <= promise.late_at + STILL_S and view.table.holds(
            option.grants, start, option.end_at, stage.reservation
        )
        if meets or not stands or (due and not is_free):
            return False
    if is_free:
        view.start(stage, option)
        return True
    if due:  # late, but it waits for its own devices, and nobody else takes what is free of them
        outcome.busy = sum(view.ledger.free(one.device)[0] < one.milli for one in option.grants)
        view.ledger.hold(option.grants)
    start = view.table.free_from(option.grants, start, length, stage.reservation)
    option = replace(option, start_at=start, end_at=start + length)
    view.reserve(stage, option, promise, keeps=profile.timetable == "keep")
    outcome.kept = True
    return True


def yield_promises(view: View) -> None:
    """Remove reservations of projects that received too much more than others of their class, and those they delay.

    All of these stages are decided again at their position in the queue; one whose place nobody takes keeps its
    reservation.
    """
    for pool, (slots, due) in view.due.items():
        profile = view.profile(pool)
        reservations = [
            one for one in view.reservations.values() if one.stage.pool == pool and one.stage.id not in view.owners
        ]
        if profile.timetable != "repair" or not reservations:
            continue
        drift = min(policy.hysteresis(pool, view) for policy, _ in profile.levels)
        starts_at = np.full(len(view.pending.priority), np.inf)
        starts_at[[view.pending.slot[one.stage.id] for one in reservations]] = [
            one.option.start_at for one in reservations
        ]
        for priority in {one.stage.priority for one in reservations}:
            ahead, behind = _drifted(view, priority, slots, due, starts_at, drift)
            for name, project in ahead.items():
                lift(view, name)
                view.yielded[name] = project
            for name in behind:
                if name in view.reservations:
                    lift(view, name)
                view.owed.add(name)


def _drifted(
    view: View, priority: int, slots: Column, due: Column, starts_at: Column, drift: float
) -> tuple[dict[str, str], list[str]]:
    """Return, within one class, the stages whose reservations delay a project that is owed more, each with that
    project; and the stages that would start sooner without them.

    ``due`` is what the project of each slot will have received before it.
    """
    pending = view.pending
    inside = pending.priority[slots] == priority
    entered = np.flatnonzero(inside & np.isfinite(starts_at[slots]))
    entered = entered[np.argsort(starts_at[slots[entered]], kind="stable")]
    others = np.flatnonzero(inside & ~pending.is_gated[slots])
    if not len(entered) or not len(others):
        return {}, []
    others = others[due[others] + drift < due[entered].max()]
    others = others[np.argsort(due[others], kind="stable")][:YIELDS]
    ahead: dict[str, str] = {}
    behind: dict[str, None] = {}
    meets: dict[tuple[RequestClass, str], bool] = {}
    for at in entered:
        reservation = view.reservations.get(pending.stages[slots[at]].id)
        later = starts_at[slots[others]] > starts_at[slots[at]] + STILL_S
        owed = others[
            later & (due[others] + drift < due[at]) & (pending.project[slots[others]] != pending.project[slots[at]])
        ]
        if reservation is None or reservation.stage.id in view.owners:
            continue
        for other in (pending.stages[slot] for slot in slots[owed]):
            key = (view.request_class(other), reservation.stage.id)
            if key not in meets:
                meets[key] = _meets(view, key[0], reservation)
            if meets[key]:
                ahead.setdefault(reservation.stage.id, other.project)
                behind[other.id] = None
        if len(ahead) >= YIELDS:
            break
    return ahead, list(behind)


def _meets(view: View, request: RequestClass, reservation: TimetableEntry) -> bool:
    """Return whether stages of this request class could use what a reservation holds."""
    rows = [view.fleet.node_row[node] for node in reservation.option.placement.nodes]
    return any(feasible.line_of(row) is not None for feasible in request.feasible_sets for row in rows)


def move_forward(view: View, pool: str) -> None:
    """Start reserved stages that fit now, and move reservations to earlier times that have become free.

    Every reservation stays in the timetable meanwhile, so none is delayed. Only nodes on which something was released
    since the last look can make a difference. The first few reservations are looked at in every cycle; the others only
    when the head of the queue changed, or when those before them moved by more device time than the profile's drift.
    """
    profile = view.profile(pool)
    if not profile.start_early or profile.timetable == "none" or (view.freed == set() and not view.unsettled):
        return
    entries = [one for one in view.reservations.values() if one.stage.pool == pool and one.stage.id not in view.owners]
    entries = [one for one in entries if one.stage.promise is not None]  # the others were searched for in this cycle
    if not entries:
        return
    entries.sort(key=lambda one: (one.promise.start_at, one.stage.number, one.stage.id))
    size = max(1, view.fleet.accelerators)
    limit, moved = profile.drift * profile.horizon_s * size, 0.0
    may_begin: dict[int, bool] = {}
    for i, reservation in enumerate(entries):
        look_ahead = profile.timetable == "repair" and (i < profile.repair_depth or moved > limit)
        request = view.request_class(reservation.stage)
        if id(request) not in may_begin:
            may_begin[id(request)] = _may_begin(view, request, profile)
        if not look_ahead and not may_begin[id(request)] and reservation.stage.id not in view.unsettled:
            continue
        gain = _forward(view, reservation, look_ahead=look_ahead)
        if gain > 0:  # what it held until now may serve those behind it
            view.free(reservation.option.grants)
            may_begin.clear()
        moved += float("inf") if gain > 0 and i == 0 else gain


def _forward(view: View, reservation: TimetableEntry, *, look_ahead: bool) -> float:
    """Move one reservation to an earlier time, if there is one. Return by how many device-seconds."""
    stage, promise, old = reservation.stage, reservation.promise, reservation.option
    request = view.request_class(stage)
    freed = [
        (feasible, among)
        for feasible in request.feasible_sets
        if (among := _freed_places(view, feasible, stage)) is None or among
    ]
    if not freed:
        return 0.0
    fresh = WaitOutcome(stage, request=request)
    earliest = gate(view, fresh)
    if earliest is None or (not look_ahead and earliest > view.now):
        return 0.0
    feasible_sets = request.feasible_sets if earliest > view.now else admitted(view, fresh, request)
    spots = [(feasible, among) for feasible, among in freed if feasible in feasible_sets]
    if not spots:
        return 0.0
    profile = view.profile(stage.pool)
    before = promise.start_at - STILL_S
    if stage.nodes == 1 and not any(
        _could_be_sooner(view, feasible, profile, among, before) for feasible, among in spots
    ):
        return 0.0
    option: Option | None = None
    stays = stage.nodes == 1 and all(among is not None for _, among in spots) and _is_elsewhere(view, promise)
    if not stays:
        view.unreserve(stage.id)
    for feasible, among in spots:
        length = view.length_s(stage, feasible, profile.plan_with)
        found = None
        if earliest <= view.now:
            found = now_slot(view, fresh, feasible, length, among if stage.nodes == 1 else None)
        if found is None and look_ahead:
            places = among if stage.nodes == 1 else None
            slot = view.table.earliest(feasible, stage.nodes, length, earliest, before, places, stage.reservation)
            found = (
                clear_option(view, stage, later_option(feasible, slot[0], length, slot[1]), before, places)
                if slot
                else None
            )
        if found is not None and (option is None or found.end_at < option.end_at):
            option = found
    is_better = option is not None and option.start_at <= before and option.end_at <= old.end_at
    if stays and is_better:
        view.unreserve(stage.id)
    if option is None or not is_better:
        if not stays:
            view.reserve(stage, old, promise, keeps=True)
        return 0.0
    if option.start_at <= view.now and not fresh.reasons and view.ledger.has(option.grants):
        view.start(stage, option)
    else:
        view.reserve(stage, option, replace(promise, late_at=max(promise.late_at, option.start_at)))
    return (promise.start_at - option.start_at) * len(option.grants)


def _could_be_sooner(
    view: View, feasible: FeasibleSet, profile: Profile, among: list[int] | None, before: float
) -> bool:
    """Return whether one of these places has what is asked for now, or may have it before ``before``."""
    if among is None:
        return True
    view.refresh(feasible, profile)
    return bool(feasible.fits[among].any()) or view.table.soonest(feasible, among) < before


def _is_elsewhere(view: View, promise: Promise) -> bool:
    """Return whether the reservation uses none of the nodes on which something was released."""
    freed = view.freed or set()
    return all(view.fleet.node_row.get(node) not in freed for node in promise.placement.nodes)


def _may_begin(view: View, request: RequestClass, profile: Profile) -> bool:
    """Return whether stages of this request class could use now what was released since the last look."""
    for feasible in request.feasible_sets:
        feasible.forget()
        view.refresh(feasible, profile)
        if feasible.count >= request.nodes:
            among = _freed_places(view, feasible)
            if among is None or feasible.fits[among].any():
                return True
    return False


def _freed_places(view: View, feasible: FeasibleSet, stage: Stage | None = None) -> list[int] | None:
    """Return the places of ``feasible`` on which something was released since the last look; ``None`` if it may be
    any place."""
    if view.freed is None or (stage is not None and stage.id in view.unsettled):
        return None
    return feasible.places.lines_of(view.freed)
