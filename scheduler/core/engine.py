"""Decides which stage runs where, since when and at whose cost. A snapshot goes in, a plan comes out.

One walk over the queue: each stage starts now, keeps its entry in the timetable, gets one, or waits with its reasons.
A second look moves entries forward where the world turned out better than predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scheduler.core import explain, topology
from scheduler.core.lifecycle import State
from scheduler.core.match import Candidate, grant
from scheduler.core.profile import Profile
from scheduler.core.types import Grant, Placement, Plan, Promise, Reason, Snapshot, Stage
from scheduler.core.view import Option, Outcome, Shape, View, Way

# Entries that would move by less than this stay where they are: people read them.
STILL_S = 1.0


def plan(snapshot: Snapshot, profile: Profile | Mapping[str, Profile], now: float) -> Plan:
    """What to do now. Pure: the same snapshot, in whatever order, gives the same plan.

    ``profile`` is one for all pools, or one for each pool by name. Each waiting stage is in the plan exactly once.
    """
    view = View(snapshot, profile, now)
    queue = line_up(view)
    for stage in queue:
        if stage.id in view.owners:  # what was freed for it is its own before anybody looks
            settle(view, stage)
    view.close_fences()
    for stage in queue:
        if stage.id not in view.owners:
            settle(view, stage)
    for pool in sorted(view.pools):
        move_forward(view, [view.outcomes[stage.id] for stage in queue if stage.pool == pool])
    return explain.conclude(view, queue)


def line_up(view: View) -> list[Stage]:
    """All waiting stages, pool by pool, best first; a stage comes after those that it needs."""
    ranks: dict[str, tuple[str, float, float, int, str]] = {}
    for stage in view.waiting.values():
        score = 0.0
        for policy, weight in view.profile(stage.pool).orders:
            score += weight * policy.order(stage, view)
        ranks[stage.id] = (stage.pool, -round(score, 6), stage.submitted_at, stage.number, stage.id)
    queue = sorted(view.waiting.values(), key=lambda stage: ranks[stage.id])
    if view.pools and any(view.profile(pool).timetable == "keep" for pool in view.pools):
        # Where entries are kept whatever comes, those that were promised first are served first.
        queue.sort(key=lambda stage: (stage.pool, *_kept_since(view, stage)))
    if any(stage.unmet for stage in queue):
        queue = _needs_first(view, queue)
    return queue


def settle(view: View, stage: Stage) -> None:
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
        if stage.promise and profile.timetable != "none" and keep(view, outcome, stage.promise, earliest):
            pass
        elif (option := search(view, outcome, ways, earliest)) is not None:
            take(view, outcome, option)
        if stage.id not in view.starts and earliest <= view.now:
            make_room(view, outcome)
    if stage.id not in view.starts and earliest <= view.now and (ways or explain.behind(outcome)):
        view.ahead[stage.pool] = outcome.ahead + 1


def start_now(view: View, outcome: Outcome, ways: list[Way]) -> bool:
    """Begin the stage where it fits at this moment, by the first way that does."""
    quantile = view.profile(outcome.stage.pool).plan_with
    found = (now_slot(view, outcome, way, view.length_s(outcome.stage, way, quantile)) for way in ways)
    option = next((one for one in found if one), None)
    if option is not None:
        view.start(outcome.stage, option)
    return option is not None


def gate(view: View, outcome: Outcome) -> float | None:
    """The earliest time at which the stage may start whatever is free; ``None`` where nobody knows. Notes why."""
    stage, now, reasons = outcome.stage, view.now, outcome.reasons
    earliest: float | None = now
    if stage.state is State.HELD:
        reasons.append(Reason("Held", {"who": stage.held_by or stage.user}))
        earliest = None
    if stage.blocked_by:
        reasons.append(Reason("DependencyNeverSatisfied", {"stage": explain.short_name_of(view, stage.blocked_by)}))
        earliest = None
    elif stage.unmet:
        names = [explain.short_name_of(view, need) for need in stage.unmet]
        reasons.append(Reason("DependencyPending", {"stages": ", ".join(names)}))
        ends = [view.finish.get(need) for need in stage.unmet]
        known = [end for end in ends if end is not None]
        earliest = max(earliest, *known) if earliest is not None and len(known) == len(ends) else None
    if stage.begin_at is not None and stage.begin_at > now:
        reasons.append(Reason("BeginTime", {"time": explain.clock(stage.begin_at), "at": stage.begin_at}))
        earliest = None if earliest is None else max(earliest, stage.begin_at)
    if stage.retry_at is not None and stage.retry_at > now:
        numbers = {"attempt": stage.attempts + 1, "of": max(stage.max_attempts, stage.attempts + 1)}
        reasons.append(Reason("BackoffAfterFailure", {**numbers, "seconds": int(stage.retry_at - now + 0.999)}))
        earliest = None if earliest is None else max(earliest, stage.retry_at)
    if stage.pool in view.pools and view.pools[stage.pool].stopped_by:
        reasons.append(Reason("PoolStopped", {"pool": stage.pool, "who": view.pools[stage.pool].stopped_by}))
        earliest = None
    return earliest


def admitted(view: View, outcome: Outcome, shape: Shape) -> list[Way]:
    """The ways that no policy forbids, whatever is free. Notes why the others are."""
    policies = view.profile(shape.pool).admits
    if not policies:
        return shape.ways
    ways, seen = [], {}
    for way in shape.ways:
        index = way.alternative.index
        if index not in seen:
            found = (policy.admit(outcome.stage, way.alternative, view) for policy in policies)
            seen[index] = next((reason for reason in found if reason), None)
        if seen[index] is None:
            ways.append(way)
    if not ways:
        outcome.reasons += [reason for reason in seen.values() if reason]
    return ways


def keep(view: View, outcome: Outcome, promise: Promise, earliest: float) -> bool:
    """Whether the entry stands as it was promised, or begins now that its time has come."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    way = _way_of(outcome.shape, promise) if outcome.shape else None
    if way is None:  # a device of it can no longer be used
        return False
    length = view.length_s(stage, way, profile.plan_with)
    start = max(promise.start_at, view.now, earliest)
    option = Option(way, start, start + length, promise.placement)
    due = start <= view.now and not outcome.reasons
    if profile.timetable == "repair":
        stands = start <= promise.late_at + STILL_S and view.table.holds(option.grants, start, option.end_at)
        if not stands or (due and not _free_now(view, option.grants)):
            return False
    if due and _free_now(view, option.grants):
        view.start(stage, option)
        return True
    if due:  # late, but it waits for its own devices, and nobody else takes what is free of them
        outcome.busy = sum(view.ledger.free(one.device)[0] < one.milli for one in option.grants)
        view.ledger.hold(option.grants)
    start = view.table.free_from(option.grants, start, length)
    view.reserve(outcome, replace(option, start_at=start, end_at=start + length), promise)
    outcome.kept = True
    if profile.timetable == "keep":
        outcome.promise = promise
    return True


def search(
    view: View, outcome: Outcome, ways: list[Way], earliest: float, before: float = float("inf")
) -> Option | None:
    """The best way to run the stage that starts ``before`` then, by the profile's judgement: now or later."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    room = profile.timetable != "none" and view.entries.get(stage.pool, 0) < profile.depth
    options = []
    for way in ways:
        if way.full and not room and len(ways) == 1:
            continue
        length = view.length_s(stage, way, profile.plan_with)
        option = now_slot(view, outcome, way, length) if earliest <= view.now else None
        if option is None and (room or (len(ways) > 1 and earliest <= view.now)):
            option = later_slot(view, stage, way, length, earliest, before)
        if option is not None:
            options.append(option)
    if len(options) > 1:
        for policy in profile.chooses:
            return policy.choose(stage, options, view)  # type: ignore[no-any-return]
    return min(options, key=lambda one: one.start_at, default=None)


def now_slot(view: View, outcome: Outcome, way: Way, length: float) -> Option | None:
    """The best nodes that are free now and that no policy refuses."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    if way.full:
        return None
    if way.refused_s <= length:
        outcome.refused = True
        return None
    ranked = rank(view, profile, way)
    if len(ranked) < stage.nodes:
        way.full = True
        return None
    until = view.now + length
    passed: list[tuple[Candidate, tuple[Grant, ...]]] = []
    for _, place, grants in ranked:
        if all(policy.fits(stage, grants, until, view) for policy in profile.fits):
            passed.append((place, grants))
            if stage.nodes == 1:
                break
    chosen = topology.gather([(place.node, grants) for place, grants in passed], stage.nodes)
    if chosen is None:
        way.refused_s, outcome.refused = length, True
        return None
    placement = Placement(
        way.alternative.index, tuple(node.id for node, _ in chosen), tuple(grants for _, grants in chosen)
    )
    return Option(way, view.now, until, placement)


def rank(view: View, profile: Profile, way: Way) -> list[tuple[float, Candidate, tuple[Grant, ...]]]:
    """The nodes of ``way`` on which it fits now, best first; only nodes that changed are looked at again."""
    ranked = []
    for i, place in enumerate(way.places):
        version = view.ledger.version[place.node.id]
        known = way.fitting.get(i)
        if known is None or known[0] != version:
            grants = grant(way.alternative.asks, place, view.ledger.free)
            score = 0.0
            if grants is not None:
                score = sum(weight * policy.score(place.node, grants, view) for policy, weight in profile.scores)
            known = way.fitting[i] = (version, grants, round(score, 6))
        if known[1] is not None:
            ranked.append((known[2], place, known[1]))
    ranked.sort(key=lambda one: (-one[0], one[1].node.name, one[1].node.id))
    return ranked


def later_slot(
    view: View, stage: Stage, way: Way, length: float, earliest: float, before: float = float("inf")
) -> Option | None:
    """The first place in the timetable that no entry before it holds."""
    not_before = max([earliest, *(start for known, start in way.floor if known <= length)])
    found = view.table.earliest(way.alternative.asks, way.places, stage.nodes, length, not_before, before)
    if found is None:
        return None
    start, chosen = found
    if earliest <= view.now:
        way.floor = [(known, at) for known, at in way.floor if known < length or at > start] + [(length, start)]
    placement = Placement(
        way.alternative.index, tuple(place.node.id for place, _ in chosen), tuple(grants for _, grants in chosen)
    )
    return Option(way, start, start + length, placement)


def take(view: View, outcome: Outcome, option: Option) -> None:
    """Start it if its time is now and it is free; else enter it, as far as the profile plans ahead."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    if option.start_at <= view.now and not outcome.reasons and _free_now(view, option.grants):
        view.start(stage, option)
        return
    outcome.expected = explain.guess(view, stage, option)
    room = view.entries.get(stage.pool, 0) < profile.depth
    if profile.timetable != "none" and room and option.start_at <= view.now + profile.horizon_s:
        old = stage.promise
        if old and option.start_at > old.late_at + STILL_S:
            view.broken.append(stage)
            old = None
        view.reserve(outcome, option, old)


def make_room(view: View, outcome: Outcome) -> None:
    """Stop others for this stage, where a policy finds that worth its price."""
    stage, shape = outcome.stage, outcome.shape
    if stage.id in view.evicting:
        outcome.reasons.append(explain.preempting(view, view.evicting[stage.id]))
        if outcome.option:
            view.ledger.hold(outcome.option.grants)
        return
    profile = view.profile(stage.pool)
    if not profile.evicts or shape is None or shape.eviction_refused or stage.priority <= view.least_priority:
        return
    wait_s = profile.horizon_s
    if outcome.option:
        wait_s = min(wait_s, outcome.option.start_at - view.now)
    else:
        lengths = [(way, view.length_s(stage, way, profile.plan_with)) for way in shape.ways]
        slots = [later_slot(view, stage, way, length, view.now) for way, length in lengths]
        wait_s = min([wait_s, *(slot.start_at - view.now for slot in slots if slot)])
    for policy in profile.evicts:
        eviction = policy.victims(stage, shape.ways, wait_s, view)
        if eviction is not None:
            if outcome.promise:
                view.unreserve(outcome)
            view.evict(outcome, eviction)
            outcome.reasons.append(explain.preempting(view, eviction.victims))
            return
    shape.eviction_refused = True


def move_forward(view: View, outcomes: list[Outcome]) -> None:
    """Start early what can, and give earlier times to kept entries where the world turned out better.

    Every entry stays in the table meanwhile, so that none is delayed. The first few are looked at in each cycle; the
    others only when the head of the queue moved, or those before them by more device time than the profile's drift.
    """
    kept = [outcome for outcome in outcomes if outcome.kept and outcome.promise and outcome.stage.id not in view.starts]
    if not kept or not (profile := view.profile(kept[0].stage.pool)).start_early:
        return
    size = max(1, sum(device.kind != "cpu" for device in view.ledger.devices.values()))
    limit, moved = profile.drift * profile.horizon_s * size, 0.0
    for way in {id(way): way for one in kept if one.shape for way in one.shape.ways}.values():
        way.refused_s, way.floor = float("inf"), []
    for i, outcome in enumerate(kept):
        look_ahead = profile.timetable == "repair" and (i < profile.repair_depth or moved > limit)
        gain = _forward(view, outcome, look_ahead=look_ahead)
        moved += float("inf") if gain > 0 and i == 0 else gain


def _forward(view: View, outcome: Outcome, *, look_ahead: bool) -> float:
    """Move one entry to an earlier time, if there is one; returns by how many device-seconds."""
    stage, old, promise = outcome.stage, outcome.option, outcome.promise
    fresh = Outcome(stage, shape=outcome.shape)
    earliest = gate(view, fresh)
    if old is None or promise is None or outcome.shape is None or earliest is None:
        return 0.0
    ways = outcome.shape.ways if earliest > view.now else admitted(view, fresh, outcome.shape)
    if not ways or (not look_ahead and (earliest > view.now or all(way.full for way in ways))):
        return 0.0
    view.unreserve(outcome)
    option = None
    if look_ahead:
        option = search(view, fresh, ways, earliest, promise.start_at - STILL_S)
    elif earliest <= view.now:
        found = (now_slot(view, fresh, w, view.length_s(stage, w, view.profile(stage.pool).plan_with)) for w in ways)
        option = next((one for one in found if one), None)
    if option is None or option.start_at > promise.start_at - STILL_S or option.end_at > old.end_at:
        view.reserve(outcome, old, promise)
        return 0.0
    if option.start_at <= view.now and not fresh.reasons and _free_now(view, option.grants):
        view.start(stage, option)
    else:
        view.reserve(outcome, option, replace(promise, late_at=max(promise.late_at, option.start_at)))
    return (promise.start_at - option.start_at) * len(option.grants)


def _free_now(view: View, grants: tuple[Grant, ...]) -> bool:
    mark = view.ledger.checkpoint()
    try:
        view.ledger.claim(grants)
    except (KeyError, ValueError):
        return False
    finally:
        view.ledger.rollback(mark)
    return True


def _way_of(shape: Shape, promise: Promise) -> Way | None:
    """The way that a promise follows, if all its nodes and devices can still be used."""
    for way in shape.ways:
        if way.alternative.index == promise.placement.alternative and len(promise.placement.nodes) == shape.nodes:
            known = {place.node.id: place for place in way.places}
            if all(
                node in known
                and {one.device for one in grants} <= {d.id for devices in known[node].matches for d in devices}
                for node, grants in zip(promise.placement.nodes, promise.placement.grants, strict=True)
            ):
                return way
    return None


def _kept_since(view: View, stage: Stage) -> tuple[bool, float]:
    keeps = view.profile(stage.pool).timetable == "keep"
    return (not (keeps and stage.promise), stage.promise.start_at if keeps and stage.promise else 0.0)


def _needs_first(view: View, queue: list[Stage]) -> list[Stage]:
    """The queue in the same order, except that no stage stands before one that it needs."""
    done: set[str] = set()
    ordered: list[Stage] = []
    for stage in queue:
        todo = [stage]
        while todo:
            top = todo[-1]
            needs = [view.waiting[need] for need in sorted(top.unmet) if need in view.waiting and need not in done]
            needs = [need for need in needs if need not in todo]  # a cycle is refused at submission; never loop on one
            if needs and top.id not in done:
                todo += needs
                continue
            todo.pop()
            if top.id not in done:
                done.add(top.id)
                ordered.append(top)
    return ordered
