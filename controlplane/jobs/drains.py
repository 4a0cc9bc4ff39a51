"""Drains nodes, and stops what runs there once the drain waits no longer. What is stopped is queued again."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import Told, clause, kept, told
from controlplane.fleet import service as fleet
from controlplane.fleet.models import DrainMode, Node
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Part
from scheduler.core.model.lifecycle import Cause, NodeState, State, sources
from scheduler.core.model.lifecycle import StageEvent as What


def drain(
    nodes: Sequence[Node], actor: str, reason: str | Told, *, mode: DrainMode, deadline_s: float | None = None
) -> list[Node]:
    """Drain these nodes: nothing new is placed there, and what runs ends as ``mode`` says.

    With ``deadline_s`` and the mode ``finish``, what still runs then is asked to save, and is queued again. Raises
    NodeRefused, and drains none of them then.
    """
    now = timezone.now()
    stop_at = now if mode != DrainMode.FINISH else None
    if mode == DrainMode.FINISH and deadline_s is not None:
        stop_at = now + timedelta(seconds=deadline_s)
    stops = DrainMode.NOW if mode == DrainMode.NOW else DrainMode.SAVE
    with transaction.atomic():
        # Nodes are locked in order of their ids, as everywhere.
        drained = [
            fleet.drain(node, actor, reason, stop_at=stop_at, stops=stops)
            for node in sorted(nodes, key=lambda node: node.id)
        ]
    # In transactions of their own, because jobs are locked before nodes; the watch repeats it for what was placed
    # between the two.
    stop_due()
    return drained


def live_on(nodes: Collection[Node]) -> QuerySet[Attempt]:
    """Return the live attempts that have a part on one of these nodes."""
    parts = Part.objects.filter(node__in=[node.pk for node in nodes], ended_at=None)
    return Attempt.objects.filter(pk__in=parts.values("attempt"), ended_at=None)


def stop_due(now: datetime | None = None) -> int:
    """Stop what runs on nodes whose drain waits no longer; return how many attempts were asked."""
    at = now or timezone.now()
    due = Node.objects.filter(state=NodeState.DRAINING, drain_stop_at__lte=at).order_by("id")
    return sum(_stop_on(node, at) for node in due)


def _stop_on(node: Node, at: datetime) -> int:
    grace_s = 0.0 if node.drain_stops == DrainMode.NOW else None
    unasked = Q(stop_why="") if grace_s is None else Q(stop_why="") | Q(stop_grace_s=None)
    found = live_on([node]).filter(unasked)
    why = told(clause("NodeDrained", node=node.name, why=kept(node.reason, node.reason_said)))
    asked = 0
    for job_id in sorted(set(found.values_list("stage__job_id", flat=True))):
        asked += _stop_job(job_id, found, at, grace_s, why)
    return asked


def _stop_job(job_id: uuid.UUID, found: QuerySet[Attempt], at: datetime, grace_s: float | None, why: Told) -> int:
    with transaction.atomic():
        job = service.lock([job_id])[job_id]
        allowed = [*sources(What.STOP), State.STOPPING]
        stages = list(job.stages.filter(pk__in=found.values("stage"), state__in=allowed))
        notes = service.stop([job], stages, Cause.REQUEUED, at, note=why, grace_s=grace_s)
        service.settle([job], notes, at, stages)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("jobs", f"job:{job.number}", "fleet"))
    return len(stages)
