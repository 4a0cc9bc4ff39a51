"""Decides which stage runs where, since when and at whose cost. A snapshot goes in, a plan comes out.

One walk over the queue: each stage starts now, keeps its entry in the timetable, gets one, or waits with its reasons.
Entries that were promised stand from the beginning; only those that reality has overtaken, and those in the way of a
higher class, are lifted and looked at again when their turn comes. A second look moves entries forward where the world
turned out better than predicted.

The walk does not look twice at what it has seen: a sieve holds back those of whom others have told all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from scheduler.core import explain, rotation, topology
from scheduler.core.fleet import Rates, Rows
from scheduler.core.garbage import uncollected
from scheduler.core.gate import admitted, gate, is_closed, is_gated
from scheduler.core.leave import leave
from scheduler.core.line import Column
from scheduler.core.match import Candidate, grant
from scheduler.core.profile import Profile
from scheduler.core.queue import Queue, line_up
from scheduler.core.shape import Shape, Way
from scheduler.core.sieve import Sieve, could_evict, is_spent
from scheduler.core.stretch import stretch
from scheduler.core.types import Expected, Grant, News, Placement, Plan, Promise, Snapshot, Stage
from scheduler.core.view import Booking, Option, Outcome, View

# For so many stages with an entry it is asked again whom to stop or to shrink.
ASKED_AGAIN = 16
# For so many when others were entered behind them.
HEADS, FOLLOWERS = 4, 64
# Entries that would move by less than this stay where they are: people read them.
STILL_S = 1.0
# So many entries of a class are looked at again in one cycle because shares have drifted.
YIELDS = 32


@uncollected()
def plan(snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float) -> Plan:
    """What to do now. Pure: the same snapshot, in whatever order, gives the same plan.

    ``profile`` is one for all pools, or one for each pool by name. Each waiting stage is in the plan exactly once.
    """
    view = View(snapshot, profile, now)
    return conclude(view, decide(view))


class Planner:
    """Plans one cycle after another and keeps what did not change in between.

    It decides as :func:`plan` does on the snapshot that :attr:`seen` gives; but its plan names only those waiting
    stages whose entry in the timetable changed, so that a cycle costs as much as has happened since the last one and
    not as much as there is. :meth:`explained` gives the others too.

    It also remembers requests of stages that left long ago: after ``most`` cycles, where that is given, and after one
    that raised, it begins anew.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most, self._cycles = most, 0
        self._forget()

    def _forget(self) -> None:
        self._view: View | None = None
        self._queue: Queue | None = None
        self._found: tuple[frozenset[int] | None, tuple[str, ...]] = (None, ())
        self._cycles = 0

    @property
    def seen(self) -> Snapshot:
        """The snapshot of the last plan, and in it what the planner knew besides: :func:`plan` of it is the same."""
        if self._view is None:
            raise RuntimeError("nothing was planned yet; call plan() first")
        freed, stirred = self._found
        nodes = self._view.fleet.nodes
        given_back = None if freed is None else tuple(sorted(nodes[row].id for row in freed))
        return replace(self._view.snapshot, given_back=given_back, stirred=stirred)

    def plan(
        self, snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float, news: News | None = None
    ) -> Plan:
        """What to do now, with only those who wait whose entry changed. ``news`` as in :meth:`think`."""
        view = self.think(snapshot, profile, now, news)
        return together(view, explain.changes(view), explained=False)

    @uncollected()
    def think(
        self, snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float, news: News | None = None
    ) -> View:
        """Decide, and put nothing into words yet. ``news`` may say what changed since the snapshot before; it is found
        out otherwise. With them the waiting and running stages and the nodes of the snapshot are not looked through."""
        if self._cycles == self._most:
            self._forget()
        try:
            if self._view is None:
                self._view = View(snapshot, profile, now, news)
            else:
                self._view.look(snapshot, profile, now, news)
            view = self._view
            self._found = (None if view.freed is None else frozenset(view.freed), tuple(sorted(view.stirred)))
            self._queue = decide(view)
        except BaseException:
            self._forget()  # what it knows by half
            raise
        self._cycles += 1
        return view

    @uncollected()
    def explained(self) -> Plan:
        """The last plan, with every waiting stage in it."""
        if self._view is None or self._queue is None:
            raise RuntimeError("there is no plan to explain yet; call plan() first")
        try:
            return conclude(self._view, self._queue)
        except BaseException:
            self._forget()
            raise

    def expects(self, stage_id: str) -> Expected | None:
        """When a stage that waits by the last plan will probably start: as it was promised, else as soon as those that
        run and those that were promised leave room for it. ``None`` where that is never, or it does not wait."""
        view = self._view
        if view is None or stage_id not in view.waiting or stage_id in view.starts:
            return None
        stage = view.waiting[stage_id]
        if stage_id in view.booked:
            return explain.expects(view, view.booked[stage_id])
        quantile = view.profile(stage.pool).plan_with
        ways = view.shape(stage).ways
        slots = [later_slot(view, stage, way, view.length_s(stage, way, quantile), view.now) for way in ways]
        first = min((slot for slot in slots if slot), key=lambda slot: slot.start_at, default=None)
        return explain.guess(view, stage, first) if first else None


def decide(view: View) -> Queue:
    """Settle every waiting stage; returns the queue in its order. Pools that take turns come last, and none of their
    stages is in the queue; what was freed for one of those is kept from the others."""
    queue = line_up(view)
    if all(view.takes_turns(pool) for pool in view.pools):
        view.turns = rotation.turn(view, now_slot)
        return queue
    kept = view.keep_for_turns()
    lift_overtaken(view)
    yield_promises(view)
    for stage in _in_order(view, view.owners & view.line.slot.keys(), queue):
        settle(view, stage, queue)  # what was freed for it is its own before anybody looks
    view.close_fences()
    if view.booked and (view.elastic or view.holders.some_became_unsafe(view.now)):
        ask_again(view, queue)
    walk(view, queue)
    ask_for_followers(view, queue)
    for pool in sorted(view.pools):
        move_forward(view, pool)
    stretch(view, now_slot)
    leave(view, now_slot)
    view.ledger.release(kept)
    view.turns = rotation.turn(view, now_slot)
    return queue


def conclude(view: View, queue: Queue) -> Plan:
    """The plan of a cycle, with every waiting stage in it and its reasons."""
    return together(view, explain.conclude(view, queue), explained=True)


def together(view: View, plan: Plan, *, explained: bool) -> Plan:
    """The plan with what the pools that take turns do; with the reasons of those of them who wait, where it is
    ``explained``."""
    if not view.turns:
        return plan
    wakes = [one.wake_at() for one in view.turns]
    if len(view.turns) < len(view.pools):
        wakes.append(plan.wake_at)
    return replace(
        plan,
        starts=(*plan.starts, *(one for turn in view.turns for one in turn.starts)),
        preempts=(*plan.preempts, *(one for turn in view.turns for one in turn.preempts)),
        moves=(*plan.moves, *(one for turn in view.turns for one in turn.moves)),
        waits=(*plan.waits, *(one for turn in view.turns if explained for one in turn.waits())),
        wake_at=min((at for at in wakes if at is not None), default=None),
        swaps=tuple(one for turn in view.turns for one in turn.swaps),
    )


def _in_order(view: View, names: Iterable[str], queue: Queue) -> list[Stage]:
    """These waiting stages, in the order of the queue."""
    if not names:
        return []
    at = view.positions(queue.slots)
    return [view.waiting[name] for name in sorted(names, key=lambda name: int(at[view.line.slot[name]]))]


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


def walk(view: View, queue: Queue) -> None:
    """Settle all stages that nobody freed devices for. A stage that needs others which wait behind it comes after
    them."""
    sieve = Sieve(view, queue.slots)
    booked, owners = view.booked, view.owners
    later: dict[str, list[Stage]] = {}
    for i in sieve.positions():
        stage = queue[i]
        name = stage.id
        if name in booked or name in owners or is_hopeless(view, sieve, i, stage):
            continue
        missing = _not_yet_seen(view, stage)
        if missing:
            later.setdefault(missing, []).append(stage)
            continue
        view.ahead[stage.pool] = max(view.ahead.get(stage.pool, 0), sieve.held_back(i))
        settle(view, stage, queue)
        if later:
            _settle_later(view, name, later, queue)
    for name in list(later):
        _settle_later(view, name, later, queue, finally_=True)


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


def _not_yet_seen(view: View, stage: Stage) -> str:
    """Something that the stage needs, that waits, and whose turn has not come."""
    for need in stage.unmet:
        if need in view.waiting and need not in view.finish and need not in view.outcomes:
            return need
    return ""


def _settle_later(
    view: View, name: str, later: dict[str, list[Stage]], queue: Queue, *, finally_: bool = False
) -> None:
    """Settle those who waited for ``name`` to be looked at."""
    todo = [name]
    while todo:
        for stage in later.pop(todo.pop(), ()):
            missing = "" if finally_ else _not_yet_seen(view, stage)
            if missing:
                later.setdefault(missing, []).append(stage)
            else:
                settle(view, stage, queue)
                todo.append(stage.id)


def is_hopeless(view: View, sieve: Sieve, i: int, stage: Stage) -> bool:
    """Whether the walk has seen enough to know that the stage at ``i`` neither begins nor gets an entry; tells the
    sieve what that means for others."""
    if stage.promise is not None:
        return False
    profile = view.profile(stage.pool)
    has_room = view.room(stage.pool, stage.priority, profile)
    if is_gated(view, stage):
        return not has_room
    shape = view.shape(stage)
    if shape.impossible or view.group(stage) in view.refusals:
        sieve.bar(i)
        return True
    if has_room:
        return False
    refused_from, by_length = -math.inf, True
    for way in shape.ways:
        view.refresh(way, profile)
        if way.count >= stage.nodes:
            length = view.length_s(stage, way, profile.plan_with)
            if not way.refuses(length, view.worst_s(stage, way) if way.barred else 0.0):
                return False
            by_length &= way.refused_s <= length
            refused_from = max(refused_from, way.refused_s)
    if by_length:
        sieve.close(i, refused_from)
    if could_evict(view, profile, shape, stage):
        return False
    sieve.spare(i, whatever_it_asks=not profile.evicts or not is_spent(profile, shape, stage))
    view.ahead[stage.pool] = view.ahead.get(stage.pool, 0) + 1
    return True


def settle(view: View, stage: Stage, queue: Queue) -> None:
    """Start the stage, enter it into the timetable, or let it wait."""
    outcome = view.outcomes[stage.id] = Outcome(stage, ahead=view.ahead.get(stage.pool, 0))
    earliest = gate(view, outcome)
    outcome.shape = shape = view.shape(stage)
    if shape.impossible:
        outcome.reasons.append(shape.impossible)
        return
    if earliest is None:
        return
    profile = view.profile(stage.pool)
    ways = shape.ways if earliest > view.now else admitted(view, outcome, shape)
    if ways:
        outcome.searched = True
        early = stage.id in view.owners and profile.start_early and earliest <= view.now
        if early and start_now(view, outcome, ways):
            return  # what was freed for it is free: it does not wait for the hour that was once foreseen
        stays = stage.promise and profile.timetable != "none" and stage.id not in view.owed
        if stays and stage.promise and keep(view, outcome, stage.promise, earliest):
            pass
        else:
            find(view, outcome, ways, earliest, queue)
        if stage.id not in view.starts and earliest <= view.now:
            make_room(view, outcome, queue)
    if stage.id not in view.starts and earliest <= view.now and (ways or explain.behind(outcome)):
        view.ahead[stage.pool] = outcome.ahead + 1


def find(view: View, outcome: Outcome, ways: list[Way], earliest: float, queue: Queue) -> None:
    """Begin the stage or enter it where it is best; entries of a lower class behind it make way."""
    stage = outcome.stage
    option = search(view, outcome, ways, earliest)
    if (option is None or option.start_at > view.now) and lift_lower(view, stage, queue):
        for way in ways:
            way.forget()
        option = search(view, outcome, ways, earliest)
    if option is not None:
        take(view, outcome, option)


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


def start_now(view: View, outcome: Outcome, ways: list[Way]) -> bool:
    """Begin the stage where it fits at this moment, by the first way that does."""
    quantile = view.profile(outcome.stage.pool).plan_with
    found = (now_slot(view, outcome, way, view.length_s(outcome.stage, way, quantile)) for way in ways)
    option = next((one for one in found if one), None)
    if option is not None:
        view.start(outcome.stage, option)
    return option is not None


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


def search(
    view: View, outcome: Outcome, ways: list[Way], earliest: float, before: float = float("inf")
) -> Option | None:
    """The best way to run the stage that starts ``before`` then, by the profile's judgement: now or later."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    room = view.room(stage.pool, stage.priority, profile)
    lengths = [view.length_s(stage, way, profile.plan_with) for way in ways]
    found: list[Option | None] = [None] * len(ways)
    if earliest <= view.now:
        found = [now_slot(view, outcome, way, length) for way, length in zip(ways, lengths, strict=True)]
    if room or any(found):  # it may be worth waiting for a faster way, but only where there is something to choose
        found = [
            option or later_slot(view, stage, way, length, earliest, before)
            for option, way, length in zip(found, ways, lengths, strict=True)
        ]
    options = [option for option in found if option is not None]
    if len(options) > 1:
        for policy in profile.chooses:
            return policy.choose(stage, options, view)  # type: ignore[no-any-return]
    return min(options, key=lambda one: one.start_at, default=None)


def now_slot(
    view: View, outcome: Outcome, way: Way, length: float, among: Iterable[int] | None = None
) -> Option | None:
    """The best nodes that are free now and that no policy refuses; ``among`` narrows the search to those places."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    worst = view.worst_s(stage, way) if view.closed else 0.0
    if way.refuses(length, worst):
        outcome.refused = True
        return None
    view.refresh(way, profile)
    if way.count < stage.nodes:
        return None
    until = view.now + length
    passed: list[tuple[Candidate, tuple[Grant, ...]]] = []
    barred = unfit = False
    for line in way.best_first(among, partial(preference, view, stage, way)):
        if view.closed and view.closing((way.places.id_of(line),), view.now, max(until, view.now + worst)):
            barred = True  # asked first: it costs less than to look for devices
            continue
        place = way.places[line]
        grants = grant(way.alternative.asks, place, view.ledger)
        if grants is None:
            continue
        if all(policy.fits(stage, grants, until, view) for policy in profile.fits):
            passed.append((place, grants))
            if stage.nodes == 1:
                break
        else:
            unfit = True
    chosen = topology.gather([(place.node, grants) for place, grants in passed], stage.nodes, stage.within)
    if chosen is None:
        outcome.refused = True
        if among is None and barred:
            way.bar(length if unfit else 0.0, worst)
        elif among is None:
            way.refused_s = length
        return None
    placement = Placement(
        way.alternative.index, tuple(node.id for node, _ in chosen), tuple(grants for _, grants in chosen)
    )
    best = way.score[[way.places.line_of(view.fleet.node_row[node]) for node in placement.nodes]].max()
    return Option(way, view.now, until, placement, way.count, float(best))


def preference(view: View, stage: Stage, way: Way, lines: Rows) -> Rates | None:
    """What the places have for this very stage, on top of their score; ``None`` where all are equal to it."""
    own: Rates | None = None
    for policy, weight in view.profile(stage.pool).prefers:
        found = policy.prefer(stage, way, lines, view)
        if found is not None:
            own = weight * found if own is None else own + weight * found
    return None if own is None else np.round(own, 6)


def later_slot(
    view: View, stage: Stage, way: Way, length: float, earliest: float, before: float = float("inf")
) -> Option | None:
    """The first place in the timetable that no entry before it holds."""
    not_before = max([earliest, *(start for known, start in way.floor if known <= length)])
    found = view.table.earliest(way, stage.nodes, length, not_before, before)
    if found is None:
        return None
    start = found[0]
    if earliest <= view.now:
        way.floor = [(known, at) for known, at in way.floor if known < length or at > start] + [(length, start)]
    return _clear(view, stage, _later(way, start, length, found[1]), before)


def _clear(
    view: View, stage: Stage, option: Option, before: float = float("inf"), among: list[int] | None = None
) -> Option | None:
    """The option, or the first after it in which the stage is done before any maintenance in the bad case too."""
    if not view.may_meet(stage, option):
        return option
    way, worst = option.way, view.worst_s(stage, option.way)
    found = view.table.earliest(way, stage.nodes, worst, option.start_at, before, among)
    return _later(way, found[0], option.end_at - option.start_at, found[1]) if found else None


def _later(way: Way, start: float, length: float, chosen: list[tuple[Candidate, tuple[Grant, ...]]]) -> Option:
    placement = Placement(
        way.alternative.index, tuple(place.node.id for place, _ in chosen), tuple(grants for _, grants in chosen)
    )
    return Option(way, start, start + length, placement)


def take(view: View, outcome: Outcome, option: Option) -> None:
    """Start it if its time is now and it is free; else enter it, as far as the profile plans ahead."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    if option.start_at <= view.now and not outcome.reasons and view.ledger.has(option.grants):
        view.start(stage, option)
        return
    outcome.expected = explain.guess(view, stage, option)
    if view.room(stage.pool, stage.priority, profile) and option.start_at <= view.now + profile.horizon_s:
        old = stage.promise
        if old and option.start_at > old.late_at + STILL_S:
            view.broken.append(stage)
            old = None
        view.reserve(stage, option, old)


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
    wait_s = profile.horizon_s
    if booking:
        wait_s = min(wait_s, booking.option.start_at - view.now)
    else:
        lengths = [(way, view.length_s(stage, way, profile.plan_with)) for way in shape.ways]
        slots = [later_slot(view, stage, way, length, view.now) for way, length in lengths]
        wait_s = min([wait_s, *(slot.start_at - view.now for slot in slots if slot)])
    for policy in profile.evicts:
        if not policy.could(stage, view):
            continue
        eviction = policy.victims(stage, shape.ways, wait_s, view)
        if eviction is not None and not view.may_meet(stage, eviction.option):
            if booking:
                view.unbook(stage.id)
            view.evict(stage, eviction)
            _lift_behind(view, stage, queue)
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
    for stage in _in_order(view, view.booked.keys() - view.owners, queue)[:ASKED_AGAIN]:
        if stage.id not in view.booked:
            continue  # lifted for one before it
        slot, profile = line.slot[stage.id], view.profile(stage.pool)
        was_safe = view.holders.were_safe(view.booked[stage.id].promise.made_at, view.now)
        policies = profile.evicts if was_safe else profile.resizes
        before = queue.slots[: at[slot]]
        if is_new[: at[slot]][line.pool[before] == line.pool[slot]].any():
            continue
        _ask(view, stage, policies, queue)


def ask_for_followers(view: View, queue: Queue) -> None:
    """Ask whom to stop for those that were entered behind others of their class: first for the others, as what a stop
    gains counts all who follow, then for themselves."""
    heads = _in_order(view, set(view.followers.values()), queue)[:HEADS]
    for stage in (*heads, *_in_order(view, view.followers, queue)[:FOLLOWERS]):
        if stage.id not in view.booked or stage.id in view.owners:
            continue
        before = set(view.booked)
        _ask(view, stage, view.profile(stage.pool).evicts, queue)
        for other in _in_order(view, before - view.booked.keys() - {stage.id}, queue):
            settle(view, other, queue)


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
    """Stop others for a stage that has an entry, where one of the policies finds that worth its price."""
    outcome = Outcome(stage, shape=view.shape(stage))
    if gate(view, outcome) != view.now or not outcome.shape:
        return
    wait_s = view.booked[stage.id].option.start_at - view.now
    for policy in policies:
        if not policy.could(stage, view) or not admitted(view, outcome, outcome.shape):
            continue
        eviction = policy.victims(stage, outcome.shape.ways, wait_s, view)
        if eviction is not None and not view.may_meet(stage, eviction.option):
            view.unbook(stage.id)
            view.evict(stage, eviction)
            _lift_behind(view, stage, queue)
            outcome.reasons.append(explain.preempting(view, eviction.victims))
            view.outcomes[stage.id] = outcome
            return


def _lift_behind(view: View, stage: Stage, queue: Queue) -> None:
    """Take out the entries behind ``stage`` that its new one stands on."""
    clashing = view.table.owners(view.table.oversold) & view.booked.keys() - {stage.id}
    if clashing:
        at = view.positions(queue.slots)
        mine = at[view.line.slot[stage.id]]
        for name in sorted(clashing):
            if at[view.line.slot[name]] > mine:
                lift(view, name)


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
            found = _clear(view, stage, _later(way, slot[0], length, slot[1]), before, places) if slot else None
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
