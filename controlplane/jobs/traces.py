"""Traces of running stages: profiles that an agent takes with a tool for somebody who may act on the job.

A trace is an order to the agent of its part while it is ASKED; the agent tells when it begins, and sends the file, or
why there is none. What is not answered in time, or whose part has ended, is FAILED by :func:`expire`.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Final

from django.core.files.base import File
from django.core.files.storage import storages
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import Phase
from controlplane import changes
from controlplane.accounts import audit
from controlplane.accounts.models import User
from controlplane.clauses import Clause, Told, clause, told
from controlplane.fleet.models import Node
from controlplane.jobs import service
from controlplane.jobs.models import Job, Part, StageTrace

LONGEST_S: Final = 120
# How many are kept of a job; the oldest go first.
MOST_KEPT: Final = 20
# An agent hears of an order within seconds.
UNHEARD_S: Final = 60.0
# After the seconds of the trace itself: until its tool has begun and written, and the agent has sent the file.
UNFINISHED_S: Final = 180.0
# After the end of its part, for what the agent still sends.
ENDED_S: Final = 10.0
# How many open ones are looked at in one round, those that were asked for first.
MOST_EXPIRED: Final = 1_000


class NotTraced(Exception):
    """Raised if a trace cannot be taken; the text says why."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


def ask(
    job: Job, user: User, tool: str, seconds: int, *, stage: str = "", rank: int = 0, reason: str = ""
) -> StageTrace:
    """Ask the agent of a running part of this job for a trace. Raises :class:`NotTraced`."""
    at, actor = timezone.now(), user.get_username()
    with transaction.atomic():
        locked = service.lock([job.id])[job.id]
        part = _part(locked, stage, rank)
        run = part.attempt.stage
        if tool not in run.request.get("profiling", ()):
            said = _("stage {stage} does not allow {tool}; a job file does so by profiling: {example}")
            example = f"{{allow: [{tool}]}}"
            raise NotTraced(409, "not_allowed", said.format(stage=run.name, tool=tool, example=example))
        if StageTrace.objects.filter(part=part, state__in=StageTrace.OPEN).exists():
            said = _("a trace of rank {rank} of stage {stage} is being taken; wait until it is done")
            raise NotTraced(409, "in_progress", said.format(rank=rank, stage=run.name))
        trace = StageTrace.objects.create(part=part, tool=tool, seconds=seconds, asked_by=user, asked_at=at)
        _keep_newest(locked)
        service.touch_nodes([part.node_id])
        params = {"trace": str(trace.id), "tool": tool, "seconds": seconds, "rank": rank}
        asked = [clause("TraceAsked", actor=actor, tool=tool, stage=run.name, rank=rank, seconds=seconds)]
        if reason:
            asked.append(clause("Aside", why=reason))
        note = service.Note(locked, "trace", told(*asked), actor, run.name, part.attempt.number, params)
        service.settle([locked], [note], at)
        audit.record("job.trace", ("job", locked.number, f"#{locked.number}"), after=params, reason=reason)
        transaction.on_commit(lambda: changes.announce(f"job:{locked.number}"))
    return trace


def _part(job: Job, stage: str, rank: int) -> Part:
    running = Part.objects.select_related("node", "attempt__stage").filter(
        attempt__stage__job=job, attempt__stop_why="", ended_at=None, phase=Phase.RUNNING
    )
    names = sorted(set(running.values_list("attempt__stage__name", flat=True)))
    if stage and not job.stages.filter(name=stage).exists():
        raise NotTraced(404, "not_found", _("job {job} has no stage {stage}").format(job=job, stage=stage))
    if not names or (stage and stage not in names):
        said = _("stage {stage} of job {job} does not run now; only what runs can be profiled")
        if not stage:
            said = _("nothing of job {job} runs now; only what runs can be profiled")
        raise NotTraced(409, "nothing_runs", said.format(job=job, stage=stage))
    if not stage and len(names) > 1:
        said = _("several stages of job {job} run; name one of them: {stages}")
        raise NotTraced(409, "ambiguous", said.format(job=job, stages=", ".join(names)))
    part = running.filter(attempt__stage__name=stage or names[0], rank=rank).first()
    if part is None:
        said = _("stage {stage} has no rank {rank} that runs")
        raise NotTraced(409, "nothing_runs", said.format(stage=stage or names[0], rank=rank))
    return part


def of_job(job: Job) -> QuerySet[StageTrace]:
    """The traces of a job, newest first."""
    found = StageTrace.objects.filter(part__attempt__stage__job=job).order_by("-asked_at", "id")
    return found.select_related("part__attempt__stage", "part__node", "asked_by")


def _keep_newest(job: Job) -> None:
    kept = of_job(job).values_list("id", flat=True)[:MOST_KEPT]
    of_job(job).exclude(id__in=list(kept)).exclude(state__in=StageTrace.OPEN).select_related(None).delete()


# -- what agents tell


def _open(trace_id: uuid.UUID, node: Node) -> QuerySet[StageTrace]:
    return StageTrace.objects.filter(id=trace_id, part__node=node, state__in=StageTrace.OPEN)


def begin(trace_id: uuid.UUID, node: Node) -> bool:
    """Record that the agent of this node takes a trace; return False if it need not any more."""
    return _moved(trace_id, _open(trace_id, node).update(state=StageTrace.State.RUNNING, began_at=timezone.now()))


def fail(trace_id: uuid.UUID, node: Node, why: Told) -> bool:
    """Record that there is no trace; return False if that was recorded, or it is there."""
    return _moved(trace_id, _fail(_open(trace_id, node), why))


def is_open(trace_id: uuid.UUID, node: Node) -> bool:
    """Whether the file of a trace is awaited from this node."""
    return _open(trace_id, node).exists()


def store(trace_id: uuid.UUID, node: Node, file: File[bytes], size_bytes: int) -> bool:
    """Keep the file of a trace; return False if nobody awaits it any more."""
    place = StageTrace(id=trace_id).place
    with transaction.atomic():
        # Whoever removes the row waits until the file is there, and removes it too.
        if not _open(trace_id, node).select_for_update(of=("self",)).exists():
            return False
        storages["traces"].save(place, file)
        StageTrace.objects.filter(id=trace_id).update(
            state=StageTrace.State.READY, size_bytes=size_bytes, ended_at=timezone.now()
        )
    return _moved(trace_id, 1)


def _fail(rows: QuerySet[StageTrace], why: Told) -> int:
    now = timezone.now()
    return rows.update(state=StageTrace.State.FAILED, detail=why.text[:500], said=why.said, ended_at=now)


def _moved(trace_id: uuid.UUID, count: int) -> bool:
    if count:
        job = StageTrace.objects.filter(id=trace_id).values_list("part__attempt__stage__job__number", flat=True).first()
        changes.announce(f"job:{job}")
    return bool(count)


def expire() -> None:
    """Give up what no agent answered in time, and what was to be taken of a part that has ended."""
    now = timezone.now()
    waiting = StageTrace.objects.filter(state__in=StageTrace.OPEN).select_related("part").order_by("asked_at")
    for trace in waiting[:MOST_EXPIRED]:
        if why := _overdue(trace, now):
            row = StageTrace.objects.filter(id=trace.id, state=trace.state)
            _moved(trace.id, _fail(row, told(why)))


def _overdue(trace: StageTrace, now: datetime) -> Clause | None:
    """Return why an open trace is given up; None if it may still come."""
    ended_at, began_at = trace.part.ended_at, trace.began_at
    if ended_at and now - ended_at > timedelta(seconds=ENDED_S):
        return clause("TracePartEnded")
    if trace.state == StageTrace.State.ASKED and now - trace.asked_at > timedelta(seconds=UNHEARD_S):
        return clause("TraceUnheard", waited_s=UNHEARD_S)
    if began_at and now - began_at > timedelta(seconds=trace.seconds + UNFINISHED_S):
        return clause("TraceLost")
    return None
