"""Successive halving of sweeps: notes what elements report at the rungs, and stops those that are not good enough.

A report only stores what was reached, because the node that reports is locked then and jobs come before nodes. Before
each cycle the scheduler asks what was not judged yet, as it does for dependencies: an interruption loses nothing, and
each rung of an element is judged once, under the lock of its array.
"""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import Told, clause, told
from controlplane.jobs import curves, service
from controlplane.jobs.models import Array, RungResult
from controlplane.jobs.service import Note
from scheduler.core.model.halving import Goal, Halving
from scheduler.core.model.lifecycle import FINAL, State

# Results that are judged in one transaction.
AT_ONCE: Final = 500

_EARLIER: Final = """
SELECT r.value FROM jobs_job j JOIN jobs_stage s ON s.job_id = j.id JOIN jobs_rungresult r ON r.stage_id = s.id
WHERE j.array_id = %s AND s.index = %s AND r.rung = %s AND r.verdict <> ''
"""


def rule(stored: Mapping[str, Any]) -> Halving:
    """Return the rule that is stored with an array."""
    return Halving(**{**stored, "goal": Goal(stored["goal"])})


def reached(
    stage: uuid.UUID, stored: Mapping[str, Any], step: int, values: Mapping[str, Any], at: datetime
) -> RungResult | None:
    """Return the row for a report of a stage of a sweep's element; None before the first rung, and without the metric.

    A report counts for the highest rung that it reaches. One of a metric that is no finite number has the value None;
    of one that is another text there is no row.
    """
    halving = rule(stored)
    rung = halving.rung_at(step)
    told_ = values.get(halving.metric)
    if not rung or step > curves.MOST_STEPS or told_ is None:
        return None
    number = curves.numbers({halving.metric: told_}).get(halving.metric)
    if number is None and not _is_unbounded(told_):
        return None
    return RungResult(stage_id=stage, rung=rung, step=step, value=number, at=at)


def _is_unbounded(value: object) -> bool:
    """Whether a reported value is a number, but no finite one; the runtime writes it as text."""
    try:
        return not math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def store(rows: Iterable[RungResult | None]) -> None:
    """Store what was reached, the first report at each rung, and let it be judged soon."""
    found = [row for row in rows if row is not None]
    if not found:
        return
    known = set(RungResult.objects.filter(stage__in=[row.stage_id for row in found]).values_list("stage", "rung"))
    if new := [row for row in found if (row.stage_id, row.rung) not in known]:
        RungResult.objects.bulk_create(new, ignore_conflicts=True)
        transaction.on_commit(changes.wake)


def settle() -> int:
    """Judge what was reached, in the order in which it was stored, and stop what is not good enough; return how many
    were judged."""
    count = 0
    found = RungResult.objects.filter(verdict="").values_list("id", "stage__job", "stage__job__array")
    while due := list(found[:AT_ONCE]):
        with transaction.atomic():
            count += _settle(due)
    return count


def _settle(due: Sequence[tuple[int, uuid.UUID, int]]) -> int:
    jobs = service.lock(job for _id, job, _array in due)
    arrays = Array.objects.select_for_update().filter(number__in={array for _id, _job, array in due})
    rules = {array.number: rule(array.halving) for array in arrays.order_by("number") if array.halving}
    # Another process may have judged some of them before the arrays were locked.
    rows = RungResult.objects.filter(id__in=[i for i, _job, _array in due], verdict="").select_related("stage")
    groups: dict[tuple[int, int, int], list[RungResult]] = defaultdict(list)
    for row in rows:
        groups[jobs[row.stage.job_id].array_id or 0, row.stage.index, row.rung].append(row)
    facts: list[Note] = []
    stops: dict[uuid.UUID, Told] = {}
    for key, some in groups.items():
        halving, earlier = rules[key[0]], _earlier(*key)
        for row in some:
            verdict = halving.judge(row.value, earlier)
            earlier.append(row.value)
            row.among, row.cutoff = verdict.among, verdict.cutoff
            job = jobs[row.stage.job_id]
            is_over = State(job.state) in FINAL
            row.verdict = RungResult.Judgement.GOES_ON if verdict.goes_on or is_over else RungResult.Judgement.STOPPED
            if not verdict.goes_on and not is_over:
                stops[job.id] = why(halving, row)
            elif not is_over:
                facts.append(Note(job, "rung", why(halving, row), "engine", row.stage.name))
    judged = [row for some in groups.values() for row in some]
    RungResult.objects.bulk_update(judged, ["verdict", "among", "cutoff"])
    service.settle({fact.job.id: fact.job for fact in facts}.values(), facts, timezone.now())
    service.stop_early(jobs, stops)
    transaction.on_commit(lambda: changes.announce("jobs", *(f"job:{job.number}" for job in list(jobs.values())[:50])))
    return len(judged)


def _earlier(array: int, stage_index: int, rung: int) -> list[float | None]:
    """Return the values that were judged at a rung."""
    with connection.cursor() as cursor:
        cursor.execute(_EARLIER, [array, stage_index, rung])
        return [value for (value,) in cursor.fetchall()]


def why(halving: Halving, row: RungResult) -> Told:
    """Say what was reported at a rung, and what was needed there when it was judged."""
    said: dict[str, Any] = {"rung": row.rung, "step": row.step, "metric": halving.metric, "value": _text(row.value)}
    said |= {"among": row.among, "factor": halving.reduction_factor}
    if (row.among or 0) < halving.reduction_factor:
        return told(clause("RungFew", **said))
    code = "RungMissed" if row.verdict == RungResult.Judgement.STOPPED else "RungPassed"
    return told(clause(code, **said, cutoff="–" if row.cutoff is None else _text(row.cutoff)))


def _text(value: float | None) -> str:
    return "nan" if value is None else f"{value:.6g}"
