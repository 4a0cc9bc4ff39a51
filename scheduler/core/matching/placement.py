"""Placement: the search for places to run a stage, now or later, and taking the best of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from scheduler.core.explain import why
from scheduler.core.model.types import Grant, Placement, Stage
from scheduler.core.resources import topology
from scheduler.core.resources.fleet import Rates, Rows
from scheduler.core.resources.match import Candidate, grant
from scheduler.core.world.request_class import FeasibleSet
from scheduler.core.world.reservation import Option, WaitOutcome
from scheduler.core.world.view import View

# Entries that would move by less than this stay where they are: people read them.
STILL_S = 1.0


def search(
    view: View, outcome: WaitOutcome, feasible_sets: list[FeasibleSet], earliest: float, before: float = float("inf")
) -> Option | None:
    """Return the best way to run the stage that starts before ``before``, by the profile's scores: now or later."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    room = view.room(stage.pool, stage.priority, profile)
    lengths = [view.length_s(stage, feasible, profile.plan_with) for feasible in feasible_sets]
    found: list[Option | None] = [None] * len(feasible_sets)
    if earliest <= view.now:
        found = [
            now_slot(view, outcome, feasible, length) for feasible, length in zip(feasible_sets, lengths, strict=True)
        ]
    if room or any(found):  # it may be worth waiting for a faster way, but only where there is something to choose
        found = [
            option or later_slot(view, stage, feasible, length, earliest, before)
            for option, feasible, length in zip(found, feasible_sets, lengths, strict=True)
        ]
    options = [option for option in found if option is not None]
    if len(options) > 1:
        for policy in profile.chooses:
            return policy.choose(stage, options, view)
    return min(options, key=lambda one: one.start_at, default=None)


def start_now(view: View, outcome: WaitOutcome, feasible_sets: list[FeasibleSet]) -> bool:
    """Start the stage with the first alternative that fits at this moment. Return whether one did."""
    quantile = view.profile(outcome.stage.pool).plan_with
    found = (
        now_slot(view, outcome, feasible, view.length_s(outcome.stage, feasible, quantile))
        for feasible in feasible_sets
    )
    option = next((one for one in found if one), None)
    if option is not None:
        view.start(outcome.stage, option)
    return option is not None


def now_slot(
    view: View, outcome: WaitOutcome, feasible: FeasibleSet, length: float, among: Iterable[int] | None = None
) -> Option | None:
    """Return the best nodes that are free now and that no policy refuses; ``among`` restricts the search to these
    places."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    worst = view.worst_s(stage, feasible) if view.closed else 0.0
    if feasible.refuses(length, worst):
        outcome.refused = True
        return None
    view.refresh(feasible, profile)
    if feasible.count < stage.nodes:
        return None
    until = view.now + length
    passed: list[tuple[Candidate, tuple[Grant, ...]]] = []
    barred = unfit = False
    for line in feasible.best_first(among, partial(preference, view, stage, feasible)):
        if view.closed and view.closing(
            (feasible.places.id_of(line),), view.now, max(until, view.now + worst), stage.reservation
        ):
            barred = True  # asked first: it costs less than to look for devices
            continue
        place = feasible.places[line]
        grants = grant(feasible.alternative.asks, place, view.ledger)
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
            feasible.bar(length if unfit else 0.0, worst)
        elif among is None:
            feasible.refused_s = length
        return None
    placement = Placement(
        feasible.alternative.index, tuple(node.id for node, _ in chosen), tuple(grants for _, grants in chosen)
    )
    best = feasible.score[[feasible.places.line_of(view.fleet.node_row[node]) for node in placement.nodes]].max()
    return Option(feasible, view.now, until, placement, feasible.count, float(best))


def preference(view: View, stage: Stage, feasible: FeasibleSet, lines: Rows) -> Rates | None:
    """Return scores of the places for this very stage, added to their own; ``None`` if all are equal."""
    own: Rates | None = None
    for policy, weight in view.profile(stage.pool).prefers:
        found = policy.prefer(stage, feasible, lines, view)
        if found is not None:
            own = weight * found if own is None else own + weight * found
    return None if own is None else np.round(own, 6)


def later_slot(
    view: View, stage: Stage, feasible: FeasibleSet, length: float, earliest: float, before: float = float("inf")
) -> Option | None:
    """Return the first place in the timetable that no earlier entry holds."""
    not_before = max([earliest, *(start for known, start in feasible.floor if known <= length)])
    found = view.table.earliest(feasible, stage.nodes, length, not_before, before, reservation=stage.reservation)
    if found is None:
        return None
    start = found[0]
    if earliest <= view.now:
        feasible.floor = [(known, at) for known, at in feasible.floor if known < length or at > start] + [
            (length, start)
        ]
    return clear_option(view, stage, later_option(feasible, start, length, found[1]), before)


def clear_option(
    view: View, stage: Stage, option: Option, before: float = float("inf"), among: list[int] | None = None
) -> Option | None:
    """Return the option, or the first after it with which the stage ends before any maintenance, also in the bad
    case."""
    if not view.may_meet(stage, option):
        return option
    feasible, worst = option.feasible, view.worst_s(stage, option.feasible)
    found = view.table.earliest(
        feasible, stage.nodes, worst, option.start_at, before, among, reservation=stage.reservation
    )
    return later_option(feasible, found[0], option.end_at - option.start_at, found[1]) if found else None


def later_option(
    feasible: FeasibleSet, start: float, length: float, chosen: list[tuple[Candidate, tuple[Grant, ...]]]
) -> Option:
    placement = Placement(
        feasible.alternative.index, tuple(place.node.id for place, _ in chosen), tuple(grants for _, grants in chosen)
    )
    return Option(feasible, start, start + length, placement)


def take(view: View, outcome: WaitOutcome, option: Option) -> None:
    """Start the stage if its time is now and the place is free; else reserve it, as far as the profile plans ahead."""
    stage, profile = outcome.stage, view.profile(outcome.stage.pool)
    if option.start_at <= view.now and not outcome.reasons and view.ledger.has(option.grants):
        view.start(stage, option)
        return
    outcome.expected = why.guess(view, stage, option)
    if view.room(stage.pool, stage.priority, profile) and option.start_at <= view.now + profile.horizon_s:
        old = stage.promise
        if old and option.start_at > old.late_at + STILL_S:
            view.broken.append(stage)
            old = None
        view.reserve(stage, option, old)
