"""What blocks a stage whatever is free: its own state, its dependencies, time, and the limits of its project."""

from __future__ import annotations

from scheduler.core.explain import names
from scheduler.core.model import times
from scheduler.core.model.clauses import clause, spoken
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Pool, Reason, Stage
from scheduler.core.world.request_class import FeasibleSet, RequestClass
from scheduler.core.world.view import View, WaitOutcome


def is_gated(view: View, stage: Stage) -> bool:
    """Return whether the stage may not start now, whatever is free."""
    return bool(
        stage.unmet
        or stage.state is State.HELD
        or stage.blocked_by
        or stage.awaits
        or (stage.begin_at is not None and stage.begin_at > view.now)
        or (stage.retry_at is not None and stage.retry_at > view.now)
        or (stage.pool in view.pools and view.pools[stage.pool].stopped_by)
        or fault(view, stage)
        or (stage.reservation and _outside(view, stage))
    )


def is_closed(pool: Pool) -> bool:
    """Return whether the pool itself may block stages, whatever is free."""
    return bool(pool.stopped_by) or pool.max_limit_s is not None


def fault(view: View, stage: Stage) -> Reason | None:
    """Return why the stage itself cannot run, whatever is free."""
    pool = view.pools.get(stage.pool)
    if pool and pool.max_limit_s is not None and (stage.time_limit_s or 0.0) > pool.max_limit_s:
        above = clause("TimeLimitAbove", asked_s=stage.time_limit_s, most_s=pool.max_limit_s, pool=pool.name)
        return Reason("InvalidSpec", {**spoken(detail=(above,)), "most_s": pool.max_limit_s})
    if stage.bundle_gone:
        return Reason("BundleUnavailable", spoken(detail=(clause("BundleGone"),)))
    if stage.image_missing:
        return Reason("ImageUnavailable", {"detail": stage.image_missing})
    if stage.secret_missing:
        return Reason("SecretMissing", {"secret": stage.secret_missing, "project": stage.project})
    if stage.pool_refused:
        return Reason("PoolRefused", {"project": stage.project, "pool": stage.pool})
    return None


def _outside(view: View, stage: Stage) -> Reason | None:
    """Return why the reservation of a stage does not let it start now."""
    kept = view.reservation_of(stage)
    if kept is None:
        return Reason("ReservationOver", {"reservation": stage.reservation})
    if kept.start_at > view.now:
        begins = {"time": times.clock(kept.start_at), "at": kept.start_at}
        return Reason("ReservationAhead", {"reservation": stage.reservation, **begins})
    return None


def gate(view: View, outcome: WaitOutcome) -> float | None:
    """Return the earliest time at which the stage may start whatever is free; ``None`` if unknown. Notes the
    reasons."""
    stage, now, reasons = outcome.stage, view.now, outcome.reasons
    earliest: float | None = now
    if stage.state is State.HELD:
        reasons.append(Reason("Held", {"who": stage.held_by or stage.user}))
        earliest = None
    if stage.blocked_by:
        reasons.append(Reason("DependencyNeverSatisfied", {"stage": names.short_name_of(view, stage.blocked_by)}))
        earliest = None
    elif stage.unmet:
        needs = [names.short_name_of(view, need) for need in stage.unmet]
        reasons.append(Reason("DependencyPending", {"stages": ", ".join(needs)}))
        ends = [view.finish.get(need) for need in stage.unmet]
        known = [end for end in ends if end is not None]
        earliest = max(earliest, *known) if earliest is not None and len(known) == len(ends) else None
    if stage.awaits:
        reasons.append(stage.awaits)
        earliest = None
    if stage.begin_at is not None and stage.begin_at > now:
        reasons.append(Reason("BeginTime", {"time": times.clock(stage.begin_at), "at": stage.begin_at}))
        earliest = None if earliest is None else max(earliest, stage.begin_at)
    if stage.retry_at is not None and stage.retry_at > now:
        numbers = {"attempt": stage.attempts + 1, "of": max(stage.max_attempts, stage.attempts + 1)}
        reasons.append(Reason("BackoffAfterFailure", {**numbers, "seconds": int(stage.retry_at - now + 0.999)}))
        earliest = None if earliest is None else max(earliest, stage.retry_at)
    outside = _outside(view, stage) if stage.reservation else None
    if outside:
        reasons.append(outside)
        kept = view.reservation_of(stage)
        earliest = None if earliest is None or kept is None else max(earliest, kept.start_at)
    wrong = fault(view, stage)
    if wrong:
        reasons.append(wrong)
        earliest = None
    if stage.pool in view.pools and view.pools[stage.pool].stopped_by:
        reasons.append(Reason("PoolStopped", {"pool": stage.pool, "who": view.pools[stage.pool].stopped_by}))
        earliest = None
    return earliest


def over_budget(view: View, stage: Stage, feasible: FeasibleSet) -> Reason | None:
    """Return the budget of its project that keeps a stage from using more devices in this way, if one does.

    No profile can leave this out: a budget is the project's, in whatever pool its stages run.
    """
    for one in view.snapshot.budgets:
        if one.until_at > view.now and one.covers(stage, feasible.alternative):
            kind = f"normalised {one.kind or 'device'}" if one.normalised else one.kind or "device"
            numbers = {"used": f"{one.used_hours:.4g}", "hours": f"{one.hours:.4g}", "number": one.number}
            until = {"time": times.clock(one.until_at), "at": one.until_at}
            return Reason("Budget", {"project": stage.project, "kind": kind, **numbers, **until})
    return None


def admitted(view: View, outcome: WaitOutcome, request: RequestClass) -> list[FeasibleSet]:
    """Return the feasible sets that no policy forbids, whatever is free. Notes the reasons of the others.

    A refusal holds for the rest of the cycle, because holdings of projects and stages ahead only grow in it.
    """
    policies = view.profile(request.pool).admits
    if not policies and not view.snapshot.budgets:
        return request.feasible_sets
    key = view.group(outcome.stage)
    known = view.refusals.get(key)
    if known is not None:
        outcome.reasons += known
        return []
    feasible_sets: list[FeasibleSet] = []
    refused: list[Reason] = []
    for feasible in request.feasible_sets:
        found = (policy.admit(outcome.stage, feasible, view) for policy in policies)
        reason = over_budget(view, outcome.stage, feasible) or next((one for one in found if one), None)
        if reason is None:
            feasible_sets.append(feasible)
        elif reason not in refused:
            refused.append(reason)
    if not feasible_sets:
        view.refusals[key] = refused
        outcome.reasons += refused
    return feasible_sets
