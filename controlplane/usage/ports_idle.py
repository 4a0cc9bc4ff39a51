"""Carries out ``idle_timeout``: stops stages whose ports nobody used for that long.

A use is what a browser sends to a port or gets from it, and a person inside the stage by ``yard exec`` or
``yard port-forward``.
Time counts from the stage's start, or from the last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from controlplane import changes
from controlplane.clauses import clause, told
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Part, Session
from controlplane.jobs.service import Note
from scheduler.core.model.lifecycle import Cause, State


def judge(now: datetime) -> int:
    """Stop every attempt whose ports were not used for its time; return how many."""
    return sum(_stop(attempt, now) for attempt in _watched() if _is_idle(attempt, now))


def _watched() -> Sequence[Attempt]:
    running = Attempt.objects.filter(ended_at=None, stop_why="", stage__state=State.RUNNING)
    return list(running.filter(stage__request__has_key="idle_timeout_s").select_related("stage"))


def _is_idle(attempt: Attempt, now: datetime) -> bool:
    since = now - timedelta(seconds=attempt.stage.request["idle_timeout_s"])
    if attempt.stage.state_at is None or attempt.stage.state_at > since:
        return False
    parts = Part.objects.filter(attempt=attempt, ended_at=None)
    inside = Session.objects.filter(part__in=parts, ended_at=None, is_web=False, of=None, seen_at__gt=since)
    return not parts.filter(visited_at__gt=since).exists() and not inside.exists()


def _stop(attempt: Attempt, now: datetime) -> bool:
    """Stop an attempt, unless it ends or was used meanwhile."""
    with transaction.atomic():
        job = service.lock([attempt.stage.job_id])[attempt.stage.job_id]
        attempt = Attempt.objects.select_related("stage").get(pk=attempt.pk)
        stage = attempt.stage
        if attempt.ended_at or attempt.stop_why or stage.state != State.RUNNING or not _is_idle(attempt, now):
            return False
        why = told(clause("PortsUnused", idle_s=stage.request["idle_timeout_s"]))
        event = told(clause("HeldIdle", stage=stage.name, why=why))
        params = {"action": "stop", "idle_timeout_s": stage.request["idle_timeout_s"]}
        notes = [Note(job, "held_idle", event, "engine", stage.name, attempt.number, params)]
        notes += service.stop([job], [stage], Cause.HELD_IDLE, now, note=why)
        service.settle([job], notes, now)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("jobs", f"job:{job.number}"))
    return True
