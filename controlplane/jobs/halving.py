"""Successive halving of sweeps: notes what elements report at the rungs, and stops those that are not good enough.

A report only stores what was reached, because the node that reports is locked then and jobs come before nodes. Before
each cycle the scheduler asks what was not judged yet, as it does for dependencies: an interruption loses nothing, and
each rung of an element is judged once, under the lock of its array.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Max
from django.utils import timezone

from agents.protocol import Progress
from controlplane import changes
from controlplane.clauses import Told, clause, told
from controlplane.jobs import curves, service
from controlplane.jobs.models import Array, Attempt, RungResult
from controlplane.jobs.service import Note
from scheduler.core.model.halving import Goal, Halving, RungRanking
from scheduler.core.model.lifecycle import FINAL, Cause, State

# Results that are judged in one transaction.
AT_ONCE: Final = 500

# Whoever is asked to stop for one of these reasons does not come back.
FOR_GOOD: Final = frozenset({Cause.CANCELLED, Cause.EARLY_STOPPED})
# Fields of elements that no verdict needs, and that may be long.
_UNREAD: Final = ("spec", "labels", "parameters")

_JUDGED: Final = """
UPDATE jobs_rungresult r SET verdict = v.verdict, among = v.among, cutoff = v.cutoff
FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::float8[]) AS v(id, verdict, among, cutoff) WHERE r.id = v.id
"""


def rule(stored: Mapping[str, Any]) -> Halving:
    """Return the rule that is stored with an array."""
    return Halving(**{**stored, "goal": Goal(stored["goal"])})


def reached(
    stage: uuid.UUID, index: int, array: int, stored: Mapping[str, Any], progress: Progress, at: datetime
) -> RungResult | None:
    """Return the row for a report of a stage of a sweep's element; None before the first rung, and without the metric.

    The metric counts for the step with which it was reported, and there for the highest rung that it reaches. One that
    is no finite number has the value None; of one that is another text there is no row.
    """
    halving = rule(stored)
    newest = progress.step or 0
    step = progress.values_at.get(halving.metric, newest)
    rung = halving.rung_at(step)
    told_ = progress.values.get(halving.metric)
    if not rung or not step <= newest <= curves.MOST_STEPS or told_ is None:
        return None
    number = curves.numbers({halving.metric: told_}).get(halving.metric)
    if number is None and not _is_unbounded(told_):
        return None
    return RungResult(stage_id=stage, array_id=array, stage_index=index, rung=rung, step=step, value=number, at=at)


def _is_unbounded(value: object) -> bool:
    """Whether a reported value is a number, but no finite one; the runtime writes it as text."""
    try:
        return not math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def store(rows: Iterable[RungResult | None]) -> None:
    """Store what was reached, the first report at each rung, and let it be judged soon.

    A stage that went back, as after a preemption, is judged again only beyond the highest rung that it had reached.
    """
    found = [row for row in rows if row is not None]
    if not found:
        return
    stages = RungResult.objects.filter(stage__in=[row.stage_id for row in found]).order_by()
    highest = dict(stages.values_list("stage").annotate(Max("rung")))
    if new := [row for row in found if row.rung > highest.get(row.stage_id, 0)]:
        RungResult.objects.bulk_create(new, ignore_conflicts=True)
        transaction.on_commit(changes.wake)


def settle() -> int:
    """Judge what was reached, in the order in which it was stored, and stop what is not good enough.

    At most ``AT_ONCE`` results are judged, because no stage starts meanwhile; if there may be more, the scheduler is
    woken again. Returns how many were judged.
    """
    due = list(RungResult.objects.filter(verdict="").values_list("id", "stage__job", "array")[:AT_ONCE])
    if not due:
        return 0
    with transaction.atomic():
        if len(due) == AT_ONCE:
            transaction.on_commit(changes.wake)
        return _settle(due)


def _settle(due: Sequence[tuple[int, uuid.UUID, int]]) -> int:
    jobs = service.lock((job for _id, job, _array in due), unread=_UNREAD)
    arrays = Array.objects.select_for_update().filter(number__in={array for _id, _job, array in due}).order_by("number")
    rules = {number: rule(stored) for number, stored in arrays.values_list("number", "halving") if stored}
    # Another process may have judged some of them before the arrays were locked.
    rows = RungResult.objects.filter(id__in=[i for i, _job, _array in due], verdict="").select_related("stage")
    rows = rows.only("array", "stage_index", "rung", "step", "value", "stage__job", "stage__name", "stage__state")
    live = Attempt.objects.filter(stage__job__in=jobs, ended_at=None)
    ending = set(live.filter(stop_why__in=FOR_GOOD).values_list("stage__job", flat=True))
    rankings: dict[tuple[int, int, int], RungRanking] = {}
    judged: list[RungResult] = []
    facts: list[Note] = []
    stops: dict[uuid.UUID, Told] = {}
    for row in rows.order_by("id"):
        job = jobs[row.stage.job_id]
        states = {State(job.state), State(row.stage.state)}
        if job.id in ending or State.CANCELLED in states:
            continue
        halving, key = rules[row.array_id], (row.array_id, row.stage_index, row.rung)
        if key not in rankings:
            rankings[key] = RungRanking(halving, _earlier(*key))
        verdict = rankings[key].judge(row.value)
        # What has ended is compared with, and not stopped.
        is_over = bool(states & FINAL)
        row.verdict = RungResult.Judgement.GOES_ON if verdict.goes_on or is_over else RungResult.Judgement.STOPPED
        row.among, row.cutoff = verdict.among, verdict.cutoff
        judged.append(row)
        if row.verdict == RungResult.Judgement.STOPPED:
            stops[job.id] = why(halving, row)
            ending.add(job.id)
        elif not is_over:
            facts.append(Note(job, "rung", why(halving, row), "engine", row.stage.name))
    columns = [[getattr(row, name) for row in judged] for name in ("id", "verdict", "among", "cutoff")]
    with connection.cursor() as cursor:
        cursor.execute(_JUDGED, columns)
    # Of elements that end anyway nothing is judged.
    RungResult.objects.filter(id__in=[i for i, _job, _array in due], verdict="").delete()
    service.settle({fact.job.id: fact.job for fact in facts}.values(), facts, timezone.now())
    service.stop_early(jobs, stops)
    transaction.on_commit(lambda: changes.announce("jobs", *(f"job:{job.number}" for job in list(jobs.values())[:50])))
    return len(judged)


def _earlier(array: int, stage_index: int, rung: int) -> list[float | None]:
    """Return the values that were judged at a rung."""
    rows = RungResult.objects.filter(array=array, stage_index=stage_index, rung=rung).exclude(verdict="")
    return list(rows.order_by("value").values_list("value", flat=True))


def why(halving: Halving, row: RungResult) -> Told:
    """Say what was reported at a rung, and what was needed there when it was judged."""
    said: dict[str, Any] = {"rung": row.rung, "step": row.step, "metric": halving.metric, "value": _text(row.value)}
    said |= {"among": row.among, "factor": halving.reduction_factor}
    if (row.among or 0) < halving.reduction_factor:
        return told(clause("RungFew", **said))
    if row.value is None:
        return told(clause("RungNoNumber", **said))
    if row.cutoff is None:
        return told(clause("RungAny", **said))
    code = "RungMissed" if row.verdict == RungResult.Judgement.STOPPED else "RungPassed"
    return told(clause(code, **said, cutoff=_text(row.cutoff)))


def _text(value: float | None) -> str:
    return "nan" if value is None else f"{value:.6g}"
