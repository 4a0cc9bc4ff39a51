"""Decides which stage runs where, since when and at whose cost. A snapshot goes in, a plan comes out.

One walk over the queue: each stage starts now, keeps its entry in the timetable, gets one, or waits with its reasons.
Entries that were promised stand from the beginning; only those that reality has overtaken, and those in the way of a
higher class, are lifted and looked at again when their turn comes. A second look moves entries forward where the world
turned out better than predicted.

The walk does not look twice at what it has seen: pruning skips those of whom others have told all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice

from scheduler.core.explain import why
from scheduler.core.matching.gate import admitted, gate, is_gated
from scheduler.core.matching.placement import later_slot, now_slot, search, start_now, take
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Expected, News, Plan, Snapshot, Stage
from scheduler.core.planning import time_sharing
from scheduler.core.planning.evacuate import evacuate
from scheduler.core.planning.eviction import ask_again, ask_for_followers, let_overtake, make_room
from scheduler.core.planning.garbage import uncollected
from scheduler.core.planning.order import StageOrder, in_order, line_up
from scheduler.core.planning.pruning import Pruning, could_evict, is_spent
from scheduler.core.planning.repair import keep, lift_lower, lift_overtaken, move_forward, yield_promises
from scheduler.core.planning.resize import resize
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import WaitOutcome
from scheduler.core.world.view import View


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
        self._queue: StageOrder | None = None
        self._found: tuple[frozenset[int] | None, tuple[str, ...]] = (None, ())
        self._cycles = 0

    @property
    def seen(self) -> Snapshot:
        """The snapshot of the last plan, and in it what the planner knew besides: :func:`plan` of it is the same."""
        if self._view is None:
            raise RuntimeError("nothing was planned yet; call plan() first")
        freed, unsettled = self._found
        nodes = self._view.fleet.nodes
        given_back = None if freed is None else tuple(sorted(nodes[row].id for row in freed))
        return replace(self._view.snapshot, given_back=given_back, unsettled=unsettled)

    def plan(
        self, snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float, news: News | None = None
    ) -> Plan:
        """What to do now, with only those who wait whose entry changed. ``news`` as in :meth:`think`."""
        view = self.think(snapshot, profile, now, news)
        return together(view, why.changes(view), explained=False)

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
            self._found = (None if view.freed is None else frozenset(view.freed), tuple(sorted(view.unsettled)))
            self._queue = decide(view)
        except BaseException:
            self._forget()  # what it knows by half
            raise
        self._cycles += 1
        return view

    @uncollected()
    def explained(self, names: Collection[str] | None = None) -> Plan:
        """The last plan, with every waiting stage in it, or where ``names`` are given with those of them that wait:
        what it says of these is the same."""
        if self._view is None or self._queue is None:
            raise RuntimeError("there is no plan to explain yet; call plan() first")
        try:
            return conclude(self._view, self._queue, names)
        except BaseException:
            self._forget()
            raise

    @property
    def head(self) -> tuple[str, ...]:
        """The first stage of the queue that waits by the last plan, where one does."""
        view, queue = self._view, self._queue
        if view is None or queue is None:
            return ()
        names = (queue[i].id for i in range(len(queue)))
        return tuple(islice((name for name in names if name not in view.starts), 1))

    def expects(self, stage_id: str) -> Expected | None:
        """When a stage that waits by the last plan will probably start: as it was promised, else as soon as those that
        run and those that were promised leave room for it. ``None`` where that is never, or it does not wait."""
        view = self._view
        if view is None or stage_id not in view.waiting or stage_id in view.starts:
            return None
        stage = view.waiting[stage_id]
        if stage_id in view.reservations:
            return why.expects(view, view.reservations[stage_id])
        quantile = view.profile(stage.pool).plan_with
        feasible_sets = view.request_class(stage).feasible_sets
        slots = [
            later_slot(view, stage, feasible, view.length_s(stage, feasible, quantile), view.now)
            for feasible in feasible_sets
        ]
        first = min((slot for slot in slots if slot), key=lambda slot: slot.start_at, default=None)
        return why.guess(view, stage, first) if first else None


def decide(view: View) -> StageOrder:
    """Settle every waiting stage; returns the queue in its order. Pools that take turns come last, and none of their
    stages is in the queue; what was freed for one of those is kept from the others."""
    queue = line_up(view)
    if all(view.takes_turns(pool) for pool in view.pools):
        view.turns = time_sharing.turn(view, now_slot)
        return queue
    kept = view.keep_for_turns()
    lift_overtaken(view)
    yield_promises(view)
    for stage in in_order(view, view.owners & view.pending.slot.keys(), queue):
        settle(view, stage, queue)  # what was freed for it is its own before anybody looks
    view.close_fences()
    if view.reservations and (view.elastic or view.victim_index.some_became_unsafe(view.now)):
        ask_again(view, queue)
    walk(view, queue)
    ask_for_followers(view, queue, settle)
    let_overtake(view, queue, settle)
    for pool in sorted(view.pools):
        move_forward(view, pool)
    resize(view, now_slot)
    evacuate(view, now_slot)
    view.ledger.release(kept)
    view.turns = time_sharing.turn(view, now_slot)
    return queue


def conclude(view: View, queue: StageOrder, names: Collection[str] | None = None) -> Plan:
    """The plan of a cycle, with every waiting stage in it and its reasons, or those of ``names`` that wait."""
    return together(view, why.conclude(view, queue, names), explained=True, names=names)


def together(view: View, plan: Plan, *, explained: bool, names: Collection[str] | None = None) -> Plan:
    """The plan with what the pools that take turns do; with the reasons of those of them who wait (of ``names``, where
    they are given), where it is ``explained``."""
    if not view.turns:
        return plan
    wakes = [one.wake_at() for one in view.turns]
    if len(view.turns) < len(view.pools):
        wakes.append(plan.wake_at)
    told = (one for turn in view.turns if explained for one in turn.waits())
    waits = told if names is None else (one for one in told if one.stage in names)
    return replace(
        plan,
        starts=(*plan.starts, *(one for turn in view.turns for one in turn.starts)),
        preempts=(*plan.preempts, *(one for turn in view.turns for one in turn.preempts)),
        moves=(*plan.moves, *(one for turn in view.turns for one in turn.moves)),
        waits=(*plan.waits, *waits),
        wake_at=min((at for at in wakes if at is not None), default=None),
        swaps=tuple(one for turn in view.turns for one in turn.swaps),
    )


def walk(view: View, queue: StageOrder) -> None:
    """Settle all stages that nobody freed devices for. A stage that needs others which wait behind it comes after
    them."""
    pruning = Pruning(view, queue.slots)
    reservations, owners = view.reservations, view.owners
    later: dict[str, list[Stage]] = {}
    for i in pruning.positions():
        stage = queue[i]
        name = stage.id
        if name in reservations or name in owners or is_hopeless(view, pruning, i, stage):
            continue
        missing = _not_yet_seen(view, stage)
        if missing:
            later.setdefault(missing, []).append(stage)
            continue
        view.ahead[stage.pool] = max(view.ahead.get(stage.pool, 0), pruning.held_back(i))
        settle(view, stage, queue)
        if later:
            _settle_later(view, name, later, queue)
    for name in list(later):
        _settle_later(view, name, later, queue, finally_=True)


def _not_yet_seen(view: View, stage: Stage) -> str:
    """Something that the stage needs, that waits, and whose turn has not come."""
    for need in stage.unmet:
        if need in view.waiting and need not in view.finish and need not in view.outcomes:
            return need
    return ""


def _settle_later(
    view: View, name: str, later: dict[str, list[Stage]], queue: StageOrder, *, finally_: bool = False
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


def is_hopeless(view: View, pruning: Pruning, i: int, stage: Stage) -> bool:
    """Whether the walk has seen enough to know that the stage at ``i`` neither begins nor gets an entry; tells the
    pruning what that means for others."""
    if stage.promise is not None:
        return False
    profile = view.profile(stage.pool)
    has_room = view.room(stage.pool, stage.priority, profile)
    if is_gated(view, stage):
        return not has_room
    request = view.request_class(stage)
    if request.impossible or view.group(stage) in view.refusals:
        pruning.bar(i)
        return True
    if has_room:
        return False
    refused_from, by_length = -math.inf, True
    for feasible in request.feasible_sets:
        view.refresh(feasible, profile)
        if feasible.count >= stage.nodes:
            length = view.length_s(stage, feasible, profile.plan_with)
            if not feasible.refuses(length, view.worst_s(stage, feasible) if feasible.barred else 0.0):
                return False
            by_length &= feasible.refused_s <= length
            refused_from = max(refused_from, feasible.refused_s)
    if by_length:
        pruning.close(i, refused_from)
    if could_evict(view, profile, request, stage):
        return False
    pruning.spare(i, whatever_it_asks=not profile.evicts or not is_spent(profile, request, stage))
    view.ahead[stage.pool] = view.ahead.get(stage.pool, 0) + 1
    return True


def settle(view: View, stage: Stage, queue: StageOrder) -> None:
    """Start the stage, enter it into the timetable, or let it wait."""
    outcome = view.outcomes[stage.id] = WaitOutcome(stage, ahead=view.ahead.get(stage.pool, 0))
    earliest = gate(view, outcome)
    outcome.request = request = view.request_class(stage)
    if request.impossible:
        outcome.reasons.append(request.impossible)
        return
    if earliest is None:
        return
    profile = view.profile(stage.pool)
    feasible_sets = request.feasible_sets if earliest > view.now else admitted(view, outcome, request)
    if feasible_sets:
        outcome.searched = True
        early = stage.id in view.owners and profile.start_early and earliest <= view.now
        if early and start_now(view, outcome, feasible_sets):
            return  # what was freed for it is free: it does not wait for the hour that was once foreseen
        stays = stage.promise and profile.timetable != "none" and stage.id not in view.owed
        if stays and stage.promise and keep(view, outcome, stage.promise, earliest):
            pass
        else:
            find(view, outcome, feasible_sets, earliest, queue)
        if stage.id not in view.starts and earliest <= view.now:
            make_room(view, outcome, queue)
    if stage.id not in view.starts and earliest <= view.now and (feasible_sets or why.behind(outcome)):
        view.ahead[stage.pool] = outcome.ahead + 1


def find(
    view: View, outcome: WaitOutcome, feasible_sets: list[FeasibleSet], earliest: float, queue: StageOrder
) -> None:
    """Begin the stage or enter it where it is best; entries of a lower class behind it make way."""
    stage = outcome.stage
    option = search(view, outcome, feasible_sets, earliest)
    if (option is None or option.start_at > view.now) and lift_lower(view, stage, queue):
        for feasible in feasible_sets:
            feasible.forget()
        option = search(view, outcome, feasible_sets, earliest)
    if option is not None:
        take(view, outcome, option)
