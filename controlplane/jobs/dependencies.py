"""Lets jobs go on whose dependencies on other jobs are met, and cancels those that wait for what can never be.

It is asked before each cycle of the scheduler what is decided by the states of the others, which are final. So no end
is missed, whoever was submitted or ended at the same moment, and nothing that ends another job needs to lock those that
wait for it. A verdict is written once, under the lock of the job that waits.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection, transaction
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import Told, clause, told
from controlplane.jobs import service
from controlplane.jobs.models import Dependency, Job, Stage
from controlplane.jobs.service import Note
from scheduler.core.model.lifecycle import WAITING, Cause, State
from scheduler.core.model.lifecycle import StageEvent as What

# Verdicts that are written in one transaction.
AT_ONCE: Final = 500

# An array has failed as soon as one of its elements has, and has ended when all have. One that was stopped early by the
# rule of its sweep has not failed. Elements of one array have higher numbers than the array, and are no namesakes for
# each other.
_DECIDED: Final = """
SELECT d.id, d.job_id, d.name, d.when,
       CASE WHEN d.when = 'afterany' OR (d.when = 'afternotok') = (t.state <> 'COMPLETED') THEN 'met' ELSE 'never' END,
       t.state
FROM jobs_dependency d JOIN jobs_job t ON t.id = d.on_job_id
WHERE d.verdict = '' AND t.state IN ('COMPLETED', 'FAILED', 'CANCELLED')
UNION ALL
SELECT d.id, d.job_id, d.name, d.when,
       CASE WHEN d.when = 'afterany' OR (d.when = 'afternotok') = a.failed THEN 'met' ELSE 'never' END,
       CASE WHEN a.failed THEN 'FAILED' ELSE 'COMPLETED' END
FROM jobs_dependency d CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT 1 FROM jobs_job e WHERE e.array_id = d.on_array_id
                   AND (e.state = 'FAILED' OR e.state = 'CANCELLED' AND e.cause <> 'EARLY_STOPPED')) AS failed,
           EXISTS (SELECT 1 FROM jobs_job e WHERE e.array_id = d.on_array_id
                   AND e.state IN ('HELD', 'PENDING', 'STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED')) AS open
) a
WHERE d.verdict = '' AND d.on_array_id IS NOT NULL AND (NOT a.open OR a.failed AND d.when = 'afterok')
UNION ALL
SELECT d.id, d.job_id, d.name, d.when, 'met', ''
FROM jobs_dependency d JOIN jobs_job j ON j.id = d.job_id
WHERE d.verdict = '' AND d.when = 'singleton' AND NOT EXISTS (
    SELECT 1 FROM jobs_job e WHERE e.user_id = j.user_id AND e.name = j.name
    AND e.number < coalesce(j.array_id, j.number) AND e.state NOT IN ('COMPLETED', 'FAILED', 'CANCELLED'))
ORDER BY 1 LIMIT %s
"""
_DECIDE: Final = """
UPDATE jobs_dependency d SET verdict = v.verdict, decided_at = %s
FROM unnest(%s::bigint[], %s::text[]) AS v(id, verdict) WHERE d.id = v.id AND d.verdict = '' RETURNING d.id
"""


@dataclass(frozen=True, slots=True)
class _Decided:
    """A dependency that is decided: of which job, on what, and in which state that ended."""

    id: int
    job: uuid.UUID
    name: str
    when: str
    verdict: str
    state: str


def settle() -> int:
    """Write all verdicts that are due, and what follows; return how many.

    What is cancelled here may be what others wait for: it is asked again until nothing is due.
    """
    count = 0
    while decided := _due():
        with transaction.atomic():
            count += _settle(decided)
    return count


def _due() -> list[_Decided]:
    with connection.cursor() as cursor:
        cursor.execute(_DECIDED, [AT_ONCE])
        return [_Decided(*row) for row in cursor.fetchall()]


def _settle(decided: Sequence[_Decided]) -> int:
    at = timezone.now()
    jobs = service.lock(one.job for one in decided)
    with connection.cursor() as cursor:
        cursor.execute(_DECIDE, [at, [one.id for one in decided], [one.verdict for one in decided]])
        written = {row[0] for row in cursor.fetchall()}
    # Another process may have written the rest.
    decided = [one for one in decided if one.id in written]
    never = {one.job: one for one in decided if one.verdict == Dependency.Verdict.NEVER}
    open_ = set(Dependency.objects.filter(job__in=jobs, verdict="").values_list("job", flat=True))
    stages: dict[uuid.UUID, list[Stage]] = defaultdict(list)
    waiting = Stage.objects.filter(job__in={one.job for one in decided}, state__in=sorted(WAITING)).order_by("index")
    for stage in waiting.prefetch_related("needs"):
        stages[stage.job_id].append(stage)
    notes: list[Note] = []
    doomed: list[Stage] = []
    for job_id, its in stages.items():
        job = jobs[job_id]
        if job_id in never:
            why = _never(job, never[job_id])
            for stage in its:
                stage.cause, stage.ended_at, stage.detail, stage.said = Cause.DEPENDENCY, at, why.text, why.said
            doomed += its
            notes += [Note(job, "cancelled", why, "engine", stage.name) for stage in its]
        elif job_id not in open_:
            _begin(its, at)
            notes.append(Note(job, "eligible", told(clause("JobMayStart", job=str(job))), "engine"))
    service.move(doomed, What.CANCEL)
    touched = [jobs[job_id] for job_id in stages]
    service.settle(touched, notes, at)
    keys = ["jobs", *(f"job:{job.number}" for job in touched[:50])]
    transaction.on_commit(lambda: changes.announce(*keys))
    return len(decided)


def _begin(stages: Sequence[Stage], at: datetime) -> None:
    """Note that those of a job's stages may start that need no other stage of it."""
    first = [stage.id for stage in stages if stage.eligible_at is None and not stage.needs.all()]
    Stage.objects.filter(id__in=first).update(eligible_at=at)


def _never(job: Job, one: _Decided) -> Told:
    """Say why what a job waits for can never be."""
    code = "NeverNotOk" if one.state == State.COMPLETED else "NeverOk"
    return told(clause(code, other=f"#{one.name}", state=one.state, job=str(job), when=one.when))
