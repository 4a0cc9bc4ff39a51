"""Reasons for a finished cycle: why each waiting stage waits, when it will probably start, and why stages run where
they do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import numpy as np

from scheduler.core.explain.announced import announced, of_promise
from scheduler.core.explain.names import name_of
from scheduler.core.explain.standing import Standing
from scheduler.core.matching.gate import admitted, gate
from scheduler.core.model.clauses import Said, clause, say, spoken
from scheduler.core.model.funnel import Filter
from scheduler.core.model.kinds import is_accelerator, is_device
from scheduler.core.model.lifecycle import State
from scheduler.core.model.reasons import ranked
from scheduler.core.model.times import clock, span
from scheduler.core.model.types import Estimate, Expected, Plan, Promise, Reason, Running, Stage, Start, Wait
from scheduler.core.planning.order import StageOrder
from scheduler.core.resources.match import grant
from scheduler.core.world.request_class import FeasibleSet, RequestClass, amount, demand, kept_out
from scheduler.core.world.view import Option, TimetableEntry, View, WaitOutcome

Funnel = tuple[tuple[str, int], ...]
# How many of the nodes that fit are asked whose promise stands in the way.
LOOK = 32


def conclude(view: View, queue: StageOrder, names: Collection[str] | None = None) -> Plan:
    """Return the plan of the cycle in queue order, with the reasons of every waiting stage, or only of those of
    ``names``."""
    return Plan(
        _starts(view),
        tuple(view.preempts),
        tuple(_waits(view, queue, names)),
        say(_replanned(view)),
        wake_at(view),
        resizes=tuple(view.resizes),
        moves=tuple(view.moves),
        replanned_said=_replanned(view),
    )


def _waits(view: View, queue: StageOrder, names: Collection[str] | None) -> Iterator[Wait]:
    """Return the waits; of the stages that the walk skipped, reasons are made for one of each group and shared."""
    standing = Standing(view, queue.slots)
    outcomes = _apart(view, queue, standing)
    counts, floors = (standing.waits & ~standing.is_apart).astype(np.int64), np.zeros(len(queue), dtype=np.int64)
    for at, outcome in outcomes.items():
        if outcome.searched or behind(outcome):
            counts[at], floors[at] = 1, outcome.ahead
    ahead = standing.ahead(counts, floors)
    capacity: dict[int, tuple[tuple[Reason, ...], Funnel, int]] = {}
    alike: dict[int, SkippedGroup] = {}
    places = np.flatnonzero(standing.waits).tolist() if names is None else standing.places(names)
    for at, is_apart, before in zip(places, standing.is_apart[places].tolist(), ahead[places].tolist(), strict=True):
        stage = queue[at]
        if is_apart:
            outcome = outcomes.get(at) or _unseen(view, stage)
            if stage.id not in view.outcomes:
                outcome.ahead = before
            yield _wait(view, outcome, capacity, passed=bool(standing.passed[at]))
            continue
        first = standing.speaker(at)
        if first not in alike:
            outcome = _unseen(view, queue[first])
            outcome.ahead = 1
            alike[first] = SkippedGroup(_wait(view, outcome, capacity, passed=bool(standing.passed[at])))
        yield alike[first].of(stage.id, before)


def _apart(view: View, queue: StageOrder, standing: Standing) -> dict[int, WaitOutcome]:
    """Return by position the outcomes of stages with reasons of their own.

    Left out are stages that can only start after some other event, because they are ahead of nobody.
    """
    found = {}
    for at in np.flatnonzero(standing.waits & standing.is_apart).tolist():
        stage = queue[at]
        outcome = view.outcomes.get(stage.id)
        if outcome is not None:
            found[at] = outcome
        elif stage.id in view.reservations or (not standing.is_shut[at] and _may_come(view, stage)):
            found[at] = _unseen(view, stage)
    return found


def _may_come(view: View, stage: Stage) -> bool:
    """Return whether it is known when the gate of the stage itself ends."""
    if (
        stage.state is State.HELD
        or stage.blocked_by
        or stage.awaits
        or stage.bundle_gone
        or stage.image_missing
        or stage.secret_missing
        or stage.pool_refused
    ):
        return False
    return all(view.finish.get(need) is not None for need in stage.unmet)


class SkippedGroup:
    """The reasons that all stages of a skipped group share, except their positions in the queue."""

    def __init__(self, one: Wait) -> None:
        codes = [reason.code for reason in one.reasons]
        at = codes.index("PriorityBehind") if "PriorityBehind" in codes else len(codes)
        self._head, self._tail = one.reasons[:at], one.reasons[at + 1 :]
        self._is_behind, self._all, self._funnel = at < len(codes), one.reasons, one.funnel

    def of(self, stage: str, ahead: int) -> Wait:
        """Return the wait of another stage of the group with so many stages ahead."""
        if not self._is_behind:
            return Wait(stage, self._all, None, None, self._funnel)
        behind = (Reason("PriorityBehind", {"ahead": ahead}),) if ahead else ()
        return Wait(stage, (*self._head, *behind, *self._tail) or self._all, None, None, self._funnel)


def changes(view: View) -> Plan:
    """Return the plan of the cycle with only those waiting stages whose reservation differs from the stored promise."""
    names = set()
    for name, reservation in view.reservations.items():
        known = view.waiting[name].promise
        if reservation.promise is not known and reservation.promise != known:
            names.add(name)
    names |= {name for name in view.lifted if name not in view.reservations and name not in view.starts}
    waits = tuple(
        Wait(
            name,
            (Reason("PendingEvaluation"),),
            planned=view.reservations[name].promise if name in view.reservations else None,
        )
        for name in sorted(names)
    )
    return Plan(
        _starts(view),
        tuple(view.preempts),
        waits,
        say(_replanned(view)),
        wake_at(view),
        resizes=tuple(view.resizes),
        moves=tuple(view.moves),
        replanned_said=_replanned(view),
    )


def _starts(view: View) -> tuple[Start, ...]:
    """Return the starts in pools without time sharing, in the order in which they were decided."""
    begun = ((view.waiting[name], option) for name, option in view.starts.items())
    return tuple(_start(view, stage, option) for stage, option in begun if not view.takes_turns(stage.pool))


def _start(view: View, stage: Stage, option: Option) -> Start:
    size = len(option.placement.nodes)
    p50_s, p90_s = (view.length_s(stage, option.feasible, quantile, size) for quantile in ("p50", "p90"))
    lasts = Estimate(p50_s, p90_s, stage.estimate.basis, known=stage.estimate.known, runs=stage.estimate.runs)
    said = why_here(view, stage, option)
    return Start(stage.id, option.placement, say(said), lasts, said)


def _unseen(view: View, stage: Stage) -> WaitOutcome:
    """Return the outcome of a stage that the walk skipped: its reservation stands, or others decided for it."""
    outcome = WaitOutcome(stage, request=view.request_class(stage), kept=stage.id in view.reservations)
    earliest = gate(view, outcome)
    assert outcome.request is not None, "it was just set"
    if outcome.request.impossible:
        outcome.reasons.append(outcome.request.impossible)
    elif earliest is not None:
        feasible_sets = (
            outcome.request.feasible_sets if earliest > view.now else admitted(view, outcome, outcome.request)
        )
        outcome.searched = bool(feasible_sets)
        profile = view.profile(stage.pool)
        outcome.refused = any(
            feasible.refuses(
                view.length_s(stage, feasible, profile.plan_with),
                view.worst_s(stage, feasible) if feasible.barred else 0.0,
            )
            for feasible in feasible_sets
        )
    return outcome


def _wait(
    view: View, outcome: WaitOutcome, capacity: dict[int, tuple[tuple[Reason, ...], Funnel, int]], *, passed: bool
) -> Wait:
    """Return the wait of a stage.

    ``passed`` tells that a younger stage of the same class is ahead because its project used less than its share.
    """
    stage, request = outcome.stage, outcome.request
    keeps = view.profile(stage.pool).timetable == "keep"
    reasons = outcome.reasons
    funnel: Funnel = request.funnel if request else ()
    if outcome.searched and request and not request.impossible:
        if id(request) not in capacity:
            capacity[id(request)] = _capacity(view, request)
        full, funnel, fitting = capacity[id(request)]
        if not outcome.reasons or outcome.reasons[0].code == "WaitingForPreemption":
            full = full if fitting < request.nodes else _though_free(view, outcome, full)
            yielded = _yielded(view, stage)
            reasons = [*reasons, *yielded, *(_by_timetable(view, outcome) if keeps else ()), *full]
            if passed and outcome.ahead:
                reasons.append(Reason("FairShareDeferred", {"project": stage.project}))
            if outcome.ahead:
                reasons.append(Reason("PriorityBehind", {"ahead": outcome.ahead}))
            if outcome.refused and fitting >= request.nodes:
                funnel = (*funnel, (Filter.NO_PROMISE_DELAYED, 0))
    if not reasons:
        reasons = [Reason("PendingEvaluation")]
    expected, planned = outcome.expected, _promised(view, stage)
    if planned:
        expected = expects(view, view.reservations[stage.id])
    # What was added after the gates is in order already.
    return Wait(stage.id, ranked(reasons) if outcome.reasons else tuple(reasons), expected, planned, funnel)


def _yielded(view: View, stage: Stage) -> tuple[Reason, ...]:
    """Return the reason that a promise to the stage was not kept because another project is owed more, if that is
    so."""
    reservation = view.reservations.get(stage.id)
    project = reservation.promise.yielded_to if reservation else stage.promise and view.yielded.get(stage.id)
    return (Reason("PromiseYielded", {"project": project}),) if project else ()


def _promised(view: View, stage: Stage) -> Promise | None:
    reservation = view.reservations.get(stage.id)
    return reservation.promise if reservation else None


def _capacity(view: View, request: RequestClass) -> tuple[tuple[Reason, ...], Funnel, int]:
    """Return for a request class, after the cycle: why it does not fit, the funnel, and on how many nodes it fits."""
    fitting: set[int] = set()
    best: tuple[int, tuple[Reason, ...]] | None = None
    most = 0
    profile = view.profile(request.pool)
    for feasible in request.feasible_sets:
        view.refresh(feasible, profile)
        fitting.update(feasible.places.nodes[feasible.fits].tolist())
        most = max(most, feasible.count)
        if feasible.count < request.nodes and (best is None or feasible.count > best[0]):
            best = (feasible.count, (_shortage(view, request, feasible),))
    if request.within and best and most < request.nodes and (spread := _spread(request)) >= request.nodes:
        numbers = {"domain": request.within, "free": spread, "most": most, "needed": request.nodes}
        best = (most, (Reason("TopologyUnsatisfied", numbers),))
    if request.asked and best and most < request.nodes:
        barred = kept_out(request.asked, most, lambda other: _fitting(view, other))
        best = (most, (*((barred,) if barred else ()), *best[1]))
    return best[1] if best else (), (*request.funnel, (Filter.ENOUGH_FREE, len(fitting))), most


def _fitting(view: View, stage: Stage) -> int:
    """Return on how many nodes a stage would fit now with its best alternative."""
    counts = [0]
    for feasible in view.request_class(stage).feasible_sets:
        view.refresh(feasible, view.profile(stage.pool))
        counts.append(feasible.count)
    return max(counts)


def _spread(request: RequestClass) -> int:
    """Return on how many like nodes the request class fits now, across domains."""
    counts: dict[tuple[int, int], int] = {}
    for feasible in request.feasible_sets:
        sort = (feasible.alternative.index, feasible.sort)
        counts[sort] = counts.get(sort, 0) + feasible.count
    return max(counts.values(), default=0)


def _shortage(view: View, request: RequestClass, feasible: FeasibleSet) -> Reason:
    """Return why too few nodes of ``feasible`` have enough free: too little in total, or enough in the wrong places."""
    asks = feasible.alternative.asks
    named = demand([feasible.alternative], request.nodes)
    for ask, rows in zip(asks, feasible.rows, strict=True):
        milli = np.maximum(view.ledger.milli[rows], 0)
        memory = np.maximum(view.ledger.memory[rows], 0)
        counts = ((view.ledger.milli[rows] >= ask.milli) & (view.ledger.memory[rows] >= ask.memory_bytes)).sum(axis=1)
        if (counts >= ask.count).sum() >= request.nodes:
            continue
        total, largest, whole = int(milli.sum()), int(milli.max(initial=0)), int(counts.sum())
        if not is_device(ask.kind):
            space = int(memory.max(initial=0)) if ask.memory_bytes else 0
            most = amount(ask.kind, largest if ask.milli else 0, space)
            return Reason("CapacityInsufficient", {**spoken(asks=named, free=(most,)), "kind": ask.kind})
        if ask.kind == "cpu":
            if total >= ask.milli * ask.count * request.nodes and largest < ask.milli:
                numbers = {"free": f"{total / 1000:.4g}", "needed": f"{ask.milli / 1000:.4g}"}
                return Reason("Fragmented", {**numbers, **spoken(kind=(clause("Cores"),))})
            most = clause("CoresAndMemory", cores=f"{largest / 1000:.4g}", memory_bytes=int(memory.max(initial=0)))
            return Reason("CapacityInsufficient", {**spoken(asks=named, free=(most,)), "kind": "cpu"})
        if ask.milli < 1000 and whole < ask.count * request.nodes <= total // ask.milli:
            needed = clause("OnOneDevice", share=f"{ask.milli / 1000:.4g}")
            numbers = {"free": f"{total / 1000:.4g}", "kind": ask.kind}
            return Reason("Fragmented", {**numbers, **spoken(needed=(needed,))})
        if whole >= ask.count * request.nodes:
            return Reason("Fragmented", {"free": whole, "kind": ask.kind, "needed": ask.count})
        free = clause("Devices", count=int(counts.max(initial=0)), device=ask.kind)
        return Reason("CapacityInsufficient", {**spoken(asks=named, free=(free,)), "kind": ask.kind})
    # Each ask alone is met on enough nodes, but not all on the same.
    return Reason("CapacityInsufficient", {**spoken(asks=named, free=(clause("NotOnOneNode"),)), "kind": asks[0].kind})


def _though_free(view: View, outcome: WaitOutcome, full: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Return why a stage waits although it would fit: a promise, its place in the timetable, or a faster alternative
    soon."""
    request, reservation = outcome.request, view.reservations.get(outcome.stage.id)
    if outcome.kept and view.profile(outcome.stage.pool).timetable == "keep":
        return ()
    if outcome.refused:
        return (_closed(view, outcome) or _reserved(view, outcome),)
    if reservation and request and any(feasible.count >= request.nodes for feasible in request.feasible_sets):
        at, barred = reservation.option.start_at, _closed(view, outcome)
        return (*full, *((barred,) if barred else ()), Reason("PlannedLater", {"time": clock(at), "at": at}))
    return full or (_reserved(view, outcome),)


def _by_timetable(view: View, outcome: WaitOutcome) -> tuple[Reason, ...]:
    """Return the reason if the reservation is always kept: its time has not come, or its devices are not free yet."""
    planned = _promised(view, outcome.stage)
    if not planned:
        return ()
    at = planned.start_at
    if at > view.now:
        return (Reason("PlannedLater", {"time": clock(at), "at": at}),)
    return (Reason("PlannedDeviceBusy", {"time": clock(at), "at": at, "devices": outcome.busy}),)


def _closed(view: View, outcome: WaitOutcome) -> Reason | None:
    """Return the calendar entry that keeps the stage from a node on which it would fit."""
    stage, request = outcome.stage, outcome.request
    if not view.closed or request is None:
        return None
    for feasible in request.feasible_sets:
        worst = view.worst_s(stage, feasible)
        for i in np.flatnonzero(feasible.fits)[:LOOK].tolist():
            window = view.closing((feasible.places[i].node.id,), view.now, view.now + worst, stage.reservation)
            if window:
                at = window.start_at
                if window.reserved:
                    times = {"time": clock(at), "until": clock(window.end_at), "at": at, "until_at": window.end_at}
                    return Reason("Reserved", {"project": window.project, "lasts_s": round(worst, 3), **times})
                numbers = {"time": clock(at), "at": at, "until": window.end_at, "fits_s": max(0, int(at - view.now))}
                return Reason("MaintenanceWindow", {**numbers, "lasts": span(worst), "lasts_s": round(worst, 3)})
    return None


def _reserved(view: View, outcome: WaitOutcome) -> Reason:
    """Return whose promise is in the way, and how short the stage would have to be to start before it."""
    stage, request = outcome.stage, outcome.request
    profile = view.profile(stage.pool)
    promised: list[str] = []
    room_s = 0.0
    for feasible in request.feasible_sets if request else ():
        length = view.length_s(stage, feasible, profile.plan_with)
        for line in islice(feasible.best_first(), LOOK):
            grants = grant(feasible.alternative.asks, feasible.places[line], view.ledger)
            if grants is None:
                continue
            for owner in view.table.in_the_way(grants, view.now, view.now + length):
                if owner not in promised and owner != stage.id:
                    promised.append(owner)
            room_s = max(room_s, view.table.room_s(grants, view.now, stage.reservation))
        if promised:
            break
    numbers = {"fits_s": int(room_s)}
    names = ", ".join(name_of(view, owner) for owner in promised[:3])
    if not promised:
        return Reason("ReservedForHigher", {**spoken(promised=(clause("Others"),)), **numbers})
    if len(promised) > 3:
        more = clause("NamesAndMore", names=names, more=len(promised) - 3)
        return Reason("ReservedForHigher", {**spoken(promised=(more,)), **numbers})
    return Reason("ReservedForHigher", {"promised": names, **numbers})


def why_here(view: View, stage: Stage, option: Option) -> Said:
    """Return what it got, compared with what, and how long it will probably run, in clauses."""
    grants = [one for one in option.placement.grants[0] if is_device(view.ledger.devices[one.device].kind)]
    counts: dict[str, int] = {}
    for one in grants:
        device = view.ledger.devices[one.device]
        if is_accelerator(device.kind) or len(grants) == 1:
            counts[device.model or device.kind] = counts.get(device.model or device.kind, 0) + 1
    got = ", ".join(f"{count} x {model}" if count > 1 else model for model, count in sorted(counts.items()))
    names = [view.nodes[node].name for node in option.placement.nodes]
    if len(names) == 1:
        said = [clause("Here", devices=got, node=names[0])]
    else:
        few = ", ".join(names[:3]) + "..." * (len(names) > 3)
        said = [clause("HereEach", devices=got, count=len(names), nodes=few)]
    if option.among > len(names):
        said.append(clause("BestFit", among=option.among))
    if stage.id in view.guaranteed:
        said.append(clause("WaitedLong", waited_s=round(view.now - stage.eligible_at)))
    if stage.most_nodes:
        said.append(clause("SizeWithin", size=len(names), least=stage.nodes, most=stage.most_nodes))
    if stage.estimate.known:
        said.append(clause("RunsFor", lasts_s=round(option.end_at - option.start_at, 3)))
    else:
        said.append(clause("RunTimeUnknown"))
    if others := len(view.request_class(stage).feasible_sets) - 1:
        said.append(clause("OtherWays", others=others))
    return tuple(said)


def guess(view: View, stage: Stage, option: Option) -> Expected:
    """Return the range in which a stage without a promise will probably start."""
    late = view.table.late(option.grants, option.start_at, view.now)
    return announced(view.snapshot.announced, stage, option.start_at, view.now, late)


def expects(view: View, reservation: TimetableEntry) -> Expected:
    """Return the range in which a stage with a reservation will probably start, as of its promise.

    If the reservation is beyond the end of the promised range, the range is computed from now.
    """
    promise, option, known = reservation.promise, reservation.option, view.snapshot.announced
    if option.start_at > promise.late_at:
        return announced(known, reservation.stage, option.start_at, view.now, option.start_at)
    return of_promise(known, reservation.stage, promise)


def preempting(view: View, victims: Iterable[Running]) -> Reason:
    """Return the reason that names the stages that make room, and how long they may still take."""
    victims = sorted(victims, key=lambda one: one.number)
    left = max((one.stop_by_at or view.now + one.grace_s) - view.now for one in victims)
    names = ", ".join(f"#{one.number} {one.name}" for one in victims)
    return Reason("WaitingForPreemption", {"victims": names, "count": len(victims), "seconds": int(max(0.0, left))})


def behind(outcome: WaitOutcome) -> bool:
    """Return whether only the order of the queue keeps the stage from starting."""
    return bool(outcome.reasons) and all(reason.code == "PriorityBehind" for reason in outcome.reasons)


def wake_at(view: View) -> float | None:
    """Return the next time at which the same world may be planned differently."""
    times = [reservation.promise.start_at for reservation in view.reservations.values()]
    if view.gated:
        gated = [view.waiting[name] for name in view.gated if name in view.waiting]
        times += [at for stage in gated for at in (stage.begin_at, stage.retry_at) if at is not None]
    if not times and view.waiting and any(view.profile(pool).timetable == "repair" for pool in view.pools):
        end = view.next_end()
        times = [end] if end is not None else []
    unsafe_at = view.victim_index.next_unsafe(view.now) if view.waiting else None
    if unsafe_at is not None:
        times.append(unsafe_at)
    return min((at for at in (*times, *view.wakes) if at > view.now), default=None)


def _replanned(view: View) -> Said:
    if not view.broken:
        return ()
    names = ", ".join(f"#{stage.number} {stage.name}" for stage in view.broken[:3])
    if len(view.broken) > 3:
        return (clause("MorePromisesBroken", stages=names, more=len(view.broken) - 3),)
    return (clause("PromisesBroken", stages=names),)
