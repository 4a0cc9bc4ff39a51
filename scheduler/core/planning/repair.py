"""Entries of the timetable against reality: which of them stand, make way, yield to other projects or move forward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler.core.matching.gate import admitted, gate, is_closed, is_gated
from scheduler.core.matching.placement import STILL_S, clear_option, later_option, now_slot
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Promise, Stage
from scheduler.core.planning.order import Queue
from scheduler.core.world.pending import Column
from scheduler.core.world.request_class import Shape, Way
from scheduler.core.world.reservation import Booking, Option, Outcome
from scheduler.core.world.view import View

# So many entries of a class are looked at again in one cycle because shares have drifted.
YIELDS = 32


def lift_overtaken(view: View) -> None:
    """Take out the entries that reality has overtaken: their time has come or their devices are taken, what they need
    is not done, or they had to stand elsewhere than promised. Their stages are settled when their turn comes."""
    closed = {name for name, pool in view.pools.items() if is_closed(pool)}
    may_be_gated, slot = view.line.is_gated, view.line.slot
    for name, booking in list(view.booked.items()):
        stage, promise = booking.stage, booking.promise
        if (
            promise.start_at <= view.now
            or booking.option.start_at != promise.start_at
            or name in view.owners
            or view.may_meet(stage, booking.option)
            or ((may_be_gated[slot[name]] or stage.pool in closed) and is_gated(view, stage))
        ):
            lift(view, name)
    for name in view.table.owners(view.table.oversold) & view.booked.keys():
        lift(view, name)


def lift(view: View, name: str) -> None:
    """Take an entry out; its stage is settled when its turn comes."""
    view.free(view.unbook(name).option.grants)
    view.lifted.add(name)


def lift_lower(view: View, stage: Stage, queue: Queue) -> bool:
    """Take out the entries of lower classes that stand behind ``stage`` in the queue; whether there were any."""
    entries = view.entries.get(stage.pool, {})
    if not any(count for priority, count in entries.items() if priority < stage.priority):
        return False
    at = view.positions(queue.slots)
    mine = at[view.line.slot[stage.id]]
    lower = [
        name
        for name, one in view.booked.items()
        if one.stage.priority < stage.priority
        and at[view.line.slot[name]] > mine
        and one.stage.pool == stage.pool
        and name not in view.owners
    ]
    for name in lower:
        lift(view, name)
    return bool(lower)


def lift_behind(view: View, stage: Stage, queue: Queue) -> None:
    """Take out the entries behind ``stage`` that its new one stands on."""
    clashing = view.table.owners(view.table.oversold) & view.booked.keys() - {stage.id}
    if clashing:
        at = view.positions(queue.slots)
        mine = at[view.line.slot[stage.id]]
        for name in sorted(clashing):
            if at[view.line.slot[name]] > mine:
                lift(view, name)


def keep(view: View, outcome: Outcome, promise: Promise, earliest: float) -> bool:
    """Whether the entry stands as it was promised, or begins now that its time has come."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    way = view.way_of(outcome.shape, promise) if outcome.shape else None
    if way is None:  # a device of it can no longer be used
        return False
    length = view.length_s(stage, way, profile.plan_with)
    start = max(promise.start_at, view.now, earliest)
    option = Option(way, start, start + length, promise.placement)
    due = start <= view.now and not outcome.reasons
    meets = view.may_meet(stage, option)
    is_free = due and view.ledger.has(option.grants) and not meets
    if profile.timetable == "repair":
        stands = start <= promise.late_at + STILL_S and view.table.holds(option.grants, start, option.end_at)
        if meets or not stands or (due and not is_free):
            return False
    if is_free:
        view.start(stage, option)
        return True
    if due:  # late, but it waits for its own devices, and nobody else takes what is free of them
        outcome.busy = sum(view.ledger.free(one.device)[0] < one.milli for one in option.grants)
        view.ledger.hold(option.grants)
    start = view.table.free_from(option.grants, start, length)
    option = replace(option, start_at=start, end_at=start + length)
    view.reserve(stage, option, promise, keeps=profile.timetable == "keep")
    outcome.kept = True
    return True


def yield_promises(view: View) -> None:
    """Take out entries of projects that have drifted too far ahead of others of their class, and those of whom they
    keep waiting. All are settled when their turn comes; one whose place nobody takes stays where it was promised."""
    for pool, (slots, due) in view.due.items():
        profile = view.profile(pool)
        booked = [one for one in view.booked.values() if one.stage.pool == pool and one.stage.id not in view.owners]
        if profile.timetable != "repair" or not booked:
            continue
        drift = min(policy.hysteresis(pool, view) for policy, _ in profile.levels)
        starts_at = np.full(len(view.line.priority), np.inf)
        starts_at[[view.line.slot[one.stage.id] for one in booked]] = [one.option.start_at for one in booked]
        for priority in {one.stage.priority for one in booked}:
            ahead, behind = _drifted(view, priority, slots, due, starts_at, drift)
            for name, project in ahead.items():
                lift(view, name)
                view.yielded[name] = project
            for name in behind:
                if name in view.booked:
                    lift(view, name)
                view.owed.add(name)


def _drifted(
    view: View, priority: int, slots: Column, due: Column, starts_at: Column, drift: float
) -> tuple[dict[str, str], list[str]]:
    """Of one class: whose entries are in the way of a project that is owed more, each with that project; and who would
    start sooner without them. ``due`` is what the project of each slot will have received before it."""
    line = view.line
    inside = line.priority[slots] == priority
    entered = np.flatnonzero(inside & np.isfinite(starts_at[slots]))
    entered = entered[np.argsort(starts_at[slots[entered]], kind="stable")]
    others = np.flatnonzero(inside & ~line.is_gated[slots])
    if not len(entered) or not len(others):
        return {}, []
    others = others[due[others] + drift < due[entered].max()]
    others = others[np.argsort(due[others], kind="stable")][:YIELDS]
    ahead: dict[str, str] = {}
    behind: dict[str, None] = {}
    meets: dict[tuple[Shape, str], bool] = {}
    for at in entered:
        booking = view.booked.get(line.stages[slots[at]].id)
        later = starts_at[slots[others]] > starts_at[slots[at]] + STILL_S
        owed = others[
            later & (due[others] + drift < due[at]) & (line.project[slots[others]] != line.project[slots[at]])
        ]
        if booking is None or booking.stage.id in view.owners:
            continue
        for other in (line.stages[slot] for slot in slots[owed]):
            key = (view.shape(other), booking.stage.id)
            if key not in meets:
                meets[key] = _meets(view, key[0], booking)
            if meets[key]:
                ahead.setdefault(booking.stage.id, other.project)
                behind[other.id] = None
        if len(ahead) >= YIELDS:
            break
    return ahead, list(behind)


def _meets(view: View, shape: Shape, booking: Booking) -> bool:
    """Whether stages of this shape could use what an entry holds."""
    rows = [view.fleet.node_row[node] for node in booking.option.placement.nodes]
    return any(way.line_of(row) is not None for way in shape.ways for row in rows)


def move_forward(view: View, pool: str) -> None:
    """Start early what can, and give earlier times to entries where the world turned out better.

    Every entry stays in the table meanwhile, so that none is delayed. Only nodes on which something was given back
    since the last look can make a difference. The first few are looked at in each cycle; the others only when the head
    of the queue moved, or those before them by more device time than the profile's drift.
    """
    profile = view.profile(pool)
    if not profile.start_early or profile.timetable == "none" or (view.freed == set() and not view.stirred):
        return
    entries = [one for one in view.booked.values() if one.stage.pool == pool and one.stage.id not in view.owners]
    entries = [one for one in entries if one.stage.promise is not None]  # the others were searched for in this cycle
    if not entries:
        return
    entries.sort(key=lambda one: (one.promise.start_at, one.stage.number, one.stage.id))
    size = max(1, view.fleet.accelerators)
    limit, moved = profile.drift * profile.horizon_s * size, 0.0
    may_begin: dict[int, bool] = {}
    for i, booking in enumerate(entries):
        look_ahead = profile.timetable == "repair" and (i < profile.repair_depth or moved > limit)
        shape = view.shape(booking.stage)
        if id(shape) not in may_begin:
            may_begin[id(shape)] = _may_begin(view, shape, profile)
        if not look_ahead and not may_begin[id(shape)] and booking.stage.id not in view.stirred:
            continue
        gain = _forward(view, booking, look_ahead=look_ahead)
        if gain > 0:  # what it held until now may serve those behind it
            view.free(booking.option.grants)
            may_begin.clear()
        moved += float("inf") if gain > 0 and i == 0 else gain


def _forward(view: View, booking: Booking, *, look_ahead: bool) -> float:
    """Move one entry to an earlier time, if there is one; returns by how many device-seconds."""
    stage, promise, old = booking.stage, booking.promise, booking.option
    shape = view.shape(stage)
    freed = [(way, among) for way in shape.ways if (among := _freed_places(view, way, stage)) is None or among]
    if not freed:
        return 0.0
    fresh = Outcome(stage, shape=shape)
    earliest = gate(view, fresh)
    if earliest is None or (not look_ahead and earliest > view.now):
        return 0.0
    ways = shape.ways if earliest > view.now else admitted(view, fresh, shape)
    spots = [(way, among) for way, among in freed if way in ways]
    if not spots:
        return 0.0
    profile = view.profile(stage.pool)
    before = promise.start_at - STILL_S
    if stage.nodes == 1 and not any(_could_be_sooner(view, way, profile, among, before) for way, among in spots):
        return 0.0
    option: Option | None = None
    stays = stage.nodes == 1 and all(among is not None for _, among in spots) and _is_elsewhere(view, promise)
    if not stays:
        view.unbook(stage.id)
    for way, among in spots:
        length = view.length_s(stage, way, profile.plan_with)
        found = None
        if earliest <= view.now:
            found = now_slot(view, fresh, way, length, among if stage.nodes == 1 else None)
        if found is None and look_ahead:
            places = among if stage.nodes == 1 else None
            slot = view.table.earliest(way, stage.nodes, length, earliest, before, places)
            found = (
                clear_option(view, stage, later_option(way, slot[0], length, slot[1]), before, places) if slot else None
            )
        if found is not None and (option is None or found.end_at < option.end_at):
            option = found
    is_better = option is not None and option.start_at <= before and option.end_at <= old.end_at
    if stays and is_better:
        view.unbook(stage.id)
    if option is None or not is_better:
        if not stays:
            view.reserve(stage, old, promise, keeps=True)
        return 0.0
    if option.start_at <= view.now and not fresh.reasons and view.ledger.has(option.grants):
        view.start(stage, option)
    else:
        view.reserve(stage, option, replace(promise, late_at=max(promise.late_at, option.start_at)))
    return (promise.start_at - option.start_at) * len(option.grants)


def _could_be_sooner(view: View, way: Way, profile: Profile, among: list[int] | None, before: float) -> bool:
    """Whether one of these places has what is asked for now, or may have it ``before`` then."""
    if among is None:
        return True
    view.refresh(way, profile)
    return bool(way.fits[among].any()) or view.table.soonest(way, among) < before


def _is_elsewhere(view: View, promise: Promise) -> bool:
    """Whether the entry touches no node on which something was given back: it cannot be in its own way there."""
    freed = view.freed or set()
    return all(view.fleet.node_row.get(node) not in freed for node in promise.placement.nodes)


def _may_begin(view: View, shape: Shape, profile: Profile) -> bool:
    """Whether stages of this shape could use at this moment what was given back since the last look."""
    for way in shape.ways:
        way.forget()
        view.refresh(way, profile)
        if way.count >= shape.nodes:
            among = _freed_places(view, way)
            if among is None or way.fits[among].any():
                return True
    return False


def _freed_places(view: View, way: Way, stage: Stage | None = None) -> list[int] | None:
    """The places of ``way`` on which something was given back since the last look; ``None`` if that may be any."""
    if view.freed is None or (stage is not None and stage.id in view.stirred):
        return None
    return way.places.lines_of(view.freed)
