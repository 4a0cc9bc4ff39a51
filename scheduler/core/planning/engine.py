"""The planner: which stage starts where and when, and which stages are stopped for it. A snapshot goes in, a plan comes
out.

One walk over the queue decides for each stage: it starts now, keeps its reservation, gets a reservation, or waits with
reasons. Promised reservations are in the timetable from the beginning. Only those that can no longer be kept, and those
in the way of a higher priority class, are removed and decided again at their position in the queue. Afterwards
reservations are moved to earlier times where resources became free sooner than predicted.

The walk skips stages whose outcome follows from stages before them (see ``pruning``).
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
    """Return the plan for a snapshot. Pure: the order of rows in the snapshot does not matter.

    ``profile`` is one profile for all pools, or one for each pool by name. Each waiting stage is in the plan exactly
    once.
    """
    view = View(snapshot, profile, now)
    return conclude(view, decide(view))


class Planner:
    """Plans cycle after cycle and keeps the state that did not change in between.

    It decides as :func:`plan` would on the snapshot that :attr:`seen` returns, but its plan names only waiting stages
    whose reservation changed. So the cost of a cycle grows with the number of changes, not with the size of the
    cluster. :meth:`explained` returns the other waiting stages too.

    Of stages that left, little more is kept than of those that wait. After ``most`` cycles, if given, and after an
    exception, all state is rebuilt.
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
        """The snapshot of the last plan with the planner's own state in it: :func:`plan` of it returns the same
        plan."""
        if self._view is None:
            raise RuntimeError("nothing was planned yet; call plan() first")
        freed, unsettled = self._found
        nodes = self._view.fleet.nodes
        given_back = None if freed is None else tuple(sorted(nodes[row].id for row in freed))
        return replace(self._view.snapshot, given_back=given_back, unsettled=unsettled)

    def plan(
        self, snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float, news: News | None = None
    ) -> Plan:
        """Return the plan, with only the waiting stages whose reservation changed. ``news`` as in :meth:`think`."""
        view = self.think(snapshot, profile, now, news)
        return together(view, why.changes(view), explained=False)

    @uncollected()
    def think(
        self, snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float, news: News | None = None
    ) -> View:
        """Decide without making reasons. ``news`` tells what changed since the last snapshot; without it the changes
        are computed.

        With ``news``, waiting stages, running stages and nodes of the snapshot that it does not name are not read.
        """
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
            self._forget()  # its state is incomplete
            raise
        self._cycles += 1
        return view

    @uncollected()
    def explained(self, names: Collection[str] | None = None) -> Plan:
        """Return the last plan with every waiting stage, or with those of ``names``; the decisions are the same."""
        if self._view is None or self._queue is None:
            raise RuntimeError("there is no plan to explain yet; call plan() first")
        try:
            return conclude(self._view, self._queue, names)
        except BaseException:
            self._forget()
            raise

    @property
    def head(self) -> tuple[str, ...]:
        """The first stage of the queue that waits after the last plan, as a tuple of one, or empty."""
        view, queue = self._view, self._queue
        if view is None or queue is None:
            return ()
        names = (queue[i].id for i in range(len(queue)))
        return tuple(islice((name for name in names if name not in view.starts), 1))

    def expects(self, stage_id: str) -> Expected | None:
        """Return when a waiting stage will probably start: its reservation, else the first gap in the timetable that
        fits.

        Returns ``None`` if it never fits or does not wait.
        """
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
    """Decide for every waiting stage and return the queue in order.

    Pools with time sharing are planned last and their stages are not in the queue. Devices that were freed for one of
    their stages are kept from the others.
    """
    queue = line_up(view)
    if all(view.takes_turns(pool) for pool in view.pools):
        view.turns = time_sharing.turn(view, now_slot)
        return queue
    kept = view.keep_for_turns()
    lift_overtaken(view)
    yield_promises(view)
    for stage in in_order(view, view.owners & view.pending.slot.keys(), queue):
        settle(view, stage, queue)  # devices freed for it are claimed before the walk
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
    """Return the plan of a cycle with reasons for every waiting stage, or only for those of ``names``."""
    return together(view, why.conclude(view, queue, names), explained=True, names=names)


def together(view: View, plan: Plan, *, explained: bool, names: Collection[str] | None = None) -> Plan:
    """Return the plan with the decisions of the pools with time sharing added.

    If ``explained``, the reasons of their waiting stages are added too (only those of ``names``, if given).
    """
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
    """Decide for all stages for which nothing was freed and that have no reservation. A stage comes after the stages
    that it needs, also if they are behind it in the queue."""
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
    """Return a waiting stage that this one needs and for which nothing is decided yet; empty if there is none."""
    for need in stage.unmet:
        if need in view.waiting and need not in view.finish and need not in view.outcomes:
            return need
    return ""


def _settle_later(
    view: View, name: str, later: dict[str, list[Stage]], queue: StageOrder, *, finally_: bool = False
) -> None:
    """Decide for the stages that were postponed until ``name`` was decided."""
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
    """Return whether earlier decisions of this walk imply that the stage at ``i`` neither starts nor gets a
    reservation.

    Tells the pruning what that implies for other stages.
    """
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
    """Start the stage, reserve devices for it, or note why it waits."""
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
            return  # the devices freed for it are free: it does not wait for its former reservation
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
    """Start the stage or reserve the best place for it; reservations of lower classes behind it are removed if they
    are in the way."""
    stage = outcome.stage
    option = search(view, outcome, feasible_sets, earliest)
    if (option is None or option.start_at > view.now) and lift_lower(view, stage, queue):
        for feasible in feasible_sets:
            feasible.forget()
        option = search(view, outcome, feasible_sets, earliest)
    if option is not None:
        take(view, outcome, option)
