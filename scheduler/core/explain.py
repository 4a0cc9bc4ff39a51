"""Puts a finished cycle into words: why each stage that waits does, when it may expect to start, and why here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from scheduler.core.match import grant
from scheduler.core.reasons import ranked
from scheduler.core.types import Estimate, Expected, Plan, Reason, Running, Stage, Start, Wait
from scheduler.core.view import Option, Outcome, Shape, View, Way, asks_text

Funnel = tuple[tuple[str, int], ...]


def conclude(view: View, queue: Sequence[Stage]) -> Plan:
    """The plan of the cycle, in the order of the queue."""
    starts = tuple(_start(view, stage, view.starts[stage.id]) for stage in queue if stage.id in view.starts)
    capacity: dict[int, tuple[tuple[Reason, ...], Funnel, int]] = {}
    waits = tuple(_wait(view, view.outcomes[stage.id], capacity) for stage in queue if stage.id not in view.starts)
    return Plan(starts, tuple(view.preempts), waits, _replanned(view), wake_at(view))


def _start(view: View, stage: Stage, option: Option) -> Start:
    lasts = Estimate(
        view.length_s(stage, option.way, "p50"), view.length_s(stage, option.way, "p90"), stage.estimate.basis
    )
    return Start(stage.id, option.placement, why_here(view, view.outcomes[stage.id], option), lasts)


def _wait(view: View, outcome: Outcome, capacity: dict[int, tuple[tuple[Reason, ...], Funnel, int]]) -> Wait:
    stage, shape = outcome.stage, outcome.shape
    keeps = view.profile(stage.pool).timetable == "keep"
    reasons = outcome.reasons
    funnel: Funnel = shape.funnel if shape else ()
    if outcome.searched and shape and not shape.impossible:
        if id(shape) not in capacity:
            capacity[id(shape)] = _capacity(view, shape)
        full, funnel, fitting = capacity[id(shape)]
        if not outcome.reasons or outcome.reasons[0].code == "WaitingForPreemption":
            full = full if fitting < shape.nodes else _though_free(view, outcome, full)
            reasons = [*reasons, *(_by_timetable(view, outcome) if keeps else ()), *full]
            if outcome.ahead:
                reasons.append(Reason("PriorityBehind", {"ahead": outcome.ahead}))
            if outcome.refused and fitting >= shape.nodes:
                funnel = (*funnel, ("without delaying a promise", 0))
    if not reasons:
        reasons = [Reason("PendingEvaluation")]
    expected, planned = outcome.expected, None
    if outcome.promise and view.profile(stage.pool).timetable != "none":
        planned = outcome.promise
        expected = Expected(planned.start_at, max(planned.start_at, planned.late_at), stage.estimate.basis)
        if outcome.option and outcome.option.start_at > planned.late_at:
            expected = Expected(outcome.option.start_at, outcome.option.start_at, stage.estimate.basis)
    # What was added after the gates is in order already.
    return Wait(stage.id, ranked(reasons) if outcome.reasons else tuple(reasons), expected, planned, funnel)


def _capacity(view: View, shape: Shape) -> tuple[tuple[Reason, ...], Funnel, int]:
    """What is free for a shape now that the cycle is over: the reason, the funnel, and on how many nodes it fits."""
    fitting: set[str] = set()
    best: tuple[int, tuple[Reason, ...]] | None = None
    most = 0
    for way in shape.ways:
        on = {p.node.id for p in way.places if grant(way.alternative.asks, p, view.ledger.free) is not None}
        fitting |= on
        most = max(most, len(on))
        if len(on) < shape.nodes and (best is None or len(on) > best[0]):
            best = (len(on), (_shortage(view, shape, way),))
    return best[1] if best else (), (*shape.funnel, ("with enough free", len(fitting))), most


def _shortage(view: View, shape: Shape, way: Way) -> Reason:
    """Why too few nodes of ``way`` have enough free: too little in all, or enough in the wrong places."""
    asks = way.alternative.asks
    short = [
        (ask, [[view.ledger.free(d.id) for d in place.matches[i]] for place in way.places])
        for i, ask in enumerate(asks)
    ]
    named = asks_text([way.alternative], shape.nodes)
    for ask, nodes in short:
        counts = sorted(
            (sum(m >= ask.milli and b >= ask.memory_bytes for m, b in node) for node in nodes), reverse=True
        )
        enough = sum(count >= ask.count for count in counts)
        if enough >= shape.nodes:
            continue
        if ask.kind == "cpu":
            total = sum(max(0, m) for node in nodes for m, _ in node)
            largest = max((m for node in nodes for m, _ in node), default=0)
            if total >= ask.milli * ask.count * shape.nodes and largest < ask.milli:
                numbers = {"free": f"{total / 1000:.4g}", "kind": "cores", "needed": f"{ask.milli / 1000:.4g}"}
                return Reason("Fragmented", numbers)
            memory = max((b for node in nodes for _, b in node), default=0)
            free = f"{max(largest, 0) / 1000:.4g} cores and {max(memory, 0) / 2**30:.4g} GiB"
            return Reason("CapacityInsufficient", {"asks": named, "free": free, "kind": "cpu"})
        milli = sum(max(0, m) for node in nodes for m, _ in node)
        whole = sum(counts)
        if ask.milli < 1000 and whole < ask.count * shape.nodes <= milli // ask.milli:
            numbers = {
                "free": f"{milli / 1000:.4g}",
                "kind": ask.kind,
                "needed": f"{ask.milli / 1000:.4g} on one device",
            }
            return Reason("Fragmented", numbers)
        if whole >= ask.count * shape.nodes:
            return Reason("Fragmented", {"free": whole, "kind": ask.kind, "needed": ask.count})
        return Reason("CapacityInsufficient", {"asks": named, "free": f"{counts[0]} {ask.kind}", "kind": ask.kind})
    # Each ask alone is met on enough nodes, but not all on the same.
    return Reason("CapacityInsufficient", {"asks": named, "free": "not all of it on one node", "kind": asks[0].kind})


def _though_free(view: View, outcome: Outcome, full: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Why a stage waits although it would fit: a promise, its place in the timetable, or a faster way soon."""
    shape, option = outcome.shape, outcome.option
    if outcome.kept and view.profile(outcome.stage.pool).timetable == "keep":
        return ()
    if outcome.refused:
        return (_reserved(view, outcome),)
    if option and shape and not all(way.full for way in shape.ways):
        at = option.start_at
        return (*full, Reason("PlannedLater", {"time": clock(at), "at": at}))
    return full or (_reserved(view, outcome),)


def _by_timetable(view: View, outcome: Outcome) -> tuple[Reason, ...]:
    """For an entry that is kept whatever comes: its time has not come, or its devices are not free yet."""
    if not outcome.promise:
        return ()
    at = outcome.promise.start_at
    if at > view.now:
        return (Reason("PlannedLater", {"time": clock(at), "at": at}),)
    return (Reason("PlannedDeviceBusy", {"time": clock(at), "at": at, "devices": outcome.busy}),)


def _reserved(view: View, outcome: Outcome) -> Reason:
    """Whose promise stands in the way, and how short the stage would have to be to go first."""
    stage, shape = outcome.stage, outcome.shape
    profile = view.profile(stage.pool)
    promised: list[str] = []
    room_s = 0.0
    for way in shape.ways if shape else ():
        length = view.length_s(stage, way, profile.plan_with)
        for place in way.places:
            grants = grant(way.alternative.asks, place, view.ledger.free)
            if grants is None:
                continue
            others = [owner for owner in view.outcomes if owner != stage.id and owner not in view.starts]
            for owner in view.table.in_the_way(grants, view.now, view.now + length, others):
                if owner not in promised:
                    promised.append(owner)
            room_s = max(room_s, view.table.room_s(grants, view.now))
        if promised:
            break
    names = [name_of(view, owner) for owner in promised[:3]]
    more = f" and {len(promised) - 3} more" if len(promised) > 3 else ""
    return Reason("ReservedForHigher", {"promised": ", ".join(names) + more or "others", "fits_s": int(room_s)})


def why_here(view: View, outcome: Outcome, option: Option) -> str:
    """One sentence: what it got, against what, and how long it will probably run."""
    grants = option.placement.grants[0]
    counts: dict[str, int] = {}
    for one in grants:
        device = view.ledger.devices[one.device]
        if device.kind != "cpu" or len(grants) == 1:
            counts[device.model or device.kind] = counts.get(device.model or device.kind, 0) + 1
    got = ", ".join(f"{count} x {model}" if count > 1 else model for model, count in sorted(counts.items()))
    names = [view.nodes[node].name for node in option.placement.nodes]
    where = (
        names[0]
        if len(names) == 1
        else f"each of {len(names)} nodes ({', '.join(names[:3])}{'...' * (len(names) > 3)})"
    )
    fitting = sum(known[1] is not None for known in option.way.fitting.values())
    among = f", the best fit of {fitting} nodes" if fitting > len(names) else ""
    others = [way for way in outcome.shape.ways if way is not option.way] if outcome.shape else []
    faster = f"; {len(others)} other ways would end later" if others else ""
    return f"{got} on {where}{among}; predicted to run {span(option.end_at - option.start_at)}{faster}"


def guess(view: View, stage: Stage, option: Option) -> Expected:
    """The range in which the stage may expect to start, before it is promised."""
    late = view.table.late(option.grants, option.start_at)
    return Expected(option.start_at, max(late, option.start_at), stage.estimate.basis)


def preempting(view: View, victims: Iterable[Running]) -> Reason:
    """The stages that make room, and how long they may still take."""
    victims = sorted(victims, key=lambda one: one.number)
    left = max((one.stop_by_at or view.now + one.grace_s) - view.now for one in victims)
    names = ", ".join(f"#{one.number} {one.name}" for one in victims)
    return Reason("WaitingForPreemption", {"victims": names, "count": len(victims), "seconds": int(max(0.0, left))})


def behind(outcome: Outcome) -> bool:
    """Whether only the order of the queue keeps the stage back."""
    return bool(outcome.reasons) and all(reason.code == "PriorityBehind" for reason in outcome.reasons)


def wake_at(view: View) -> float | None:
    """The next moment at which the same world may be planned otherwise."""
    times = [outcome.promise.start_at for outcome in view.outcomes.values() if outcome.promise]
    for stage in view.waiting.values():
        times += [at for at in (stage.begin_at, stage.retry_at) if at is not None]
        if view.profile(stage.pool).timetable == "repair" and not times:
            times += [end for owner, end in view.finish.items() if owner in view.running]
    return min((at for at in times if at > view.now), default=None)


def name_of(view: View, stage_id: str) -> str:
    """The stage as people name it: ``#12 train``, or its id if it is not in this snapshot.

    In a dry run the job has no number yet.
    """
    stage = view.waiting.get(stage_id) or view.running.get(stage_id)
    return (f"#{stage.number} {stage.name}" if stage.number else stage.name) if stage else stage_id


def short_name_of(view: View, stage_id: str) -> str:
    """The name of a stage among those of its own job."""
    stage = view.waiting.get(stage_id) or view.running.get(stage_id)
    return stage.name if stage else stage_id


def clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float) -> str:
    """A duration in the largest unit that keeps two digits: ``90 s``, ``25 min``, ``30 h``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def _replanned(view: View) -> str:
    if not view.broken:
        return ""
    names = [f"#{stage.number} {stage.name}" for stage in view.broken[:3]]
    more = f" and {len(view.broken) - 3} more" if len(view.broken) > 3 else ""
    return f"the promises of {', '.join(names)}{more} could not be kept"
