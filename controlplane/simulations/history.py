"""This installation as a trace for the reader of traces: what finished in the last days, or what runs and waits."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from controlplane.jobs.models import Stage
from scheduler.core.model.lifecycle import ACTIVE, State
from scheduler.sim.traces import history

MOST_DAYS = 90
AHEAD_S = 60.0
UNKNOWN_S = 3600.0
LEAST_S = 60.0
LONGEST_S = 365 * 86_400.0


def text(days: float, condition: Q, most: int) -> str:
    """JSON lines of the newest ``most`` completed stages whose jobs meet ``condition``, oldest first."""
    since = timezone.now() - timedelta(days=days)
    rows = (
        Stage.objects.filter(condition, state="COMPLETED", ended_at__gte=since, started_at__isnull=False)
        .select_related("job__project", "job__user")
        .prefetch_related("needs")
        .order_by("-ended_at")[:most]
    )
    found = sorted(rows, key=lambda stage: (stage.job.submitted_at, stage.index))
    return "\n".join(_past(stage) for stage in found)


def _past(stage: Stage) -> str:
    assert stage.started_at is not None, "the query asks for it"
    assert stage.ended_at is not None, "the query asks for it"
    submitted_at = stage.job.submitted_at
    return _line(stage, submitted_at, max(stage.started_at, submitted_at), stage.ended_at)


def queue(condition: Q, most: int) -> str:
    """JSON lines of the oldest ``most`` stages that run or wait and whose jobs meet ``condition``, as if all were
    submitted at once: those that run :data:`AHEAD_S` before the others, for what is left of their predicted time.

    A stage of which nothing is predicted or stated lasts :data:`UNKNOWN_S`.
    """
    now = timezone.now()
    rows = (
        Stage.objects.filter(condition, state__in=[State.PENDING, *ACTIVE])
        .select_related("job__project", "job__user")
        .prefetch_related("needs")
        .order_by("job__submitted_at", "index")[:most]
    )
    lines = []
    for place, stage in enumerate(rows):
        # Who was first stays first.
        at = now + timedelta(microseconds=place)
        lasts_s = _predicted_s(stage)
        if stage.state in ACTIVE:
            at -= timedelta(seconds=AHEAD_S)
            ran_s = (now - stage.started_at).total_seconds() if stage.started_at else 0.0
            lasts_s = max(LEAST_S, lasts_s - ran_s)
        lines.append((at, _line(stage, at, at, at + timedelta(seconds=lasts_s))))
    return "\n".join(line for _at, line in sorted(lines))


def _predicted_s(stage: Stage) -> float:
    stated = stage.request.get("expected_s") or stage.request.get("time_limit_s") or UNKNOWN_S
    return min(float((stage.lasts or {}).get("p50_s") or stated), LONGEST_S)


def _line(stage: Stage, submitted_at: datetime, started_at: datetime, ended_at: datetime) -> str:
    request, job = stage.request, stage.job
    asks = request["alternatives"][0]["asks"]
    special = next((ask for ask in asks if ask["kind"] != "cpu"), None)
    cores = sum(ask.get("count", 1) * ask.get("milli", 1000) for ask in asks if ask["kind"] == "cpu") / 1000
    gpus = special.get("count", 1) * special.get("milli", 1000) / 1000 if special else 0.0
    return history.line(
        {
            "id": str(stage.id),
            "submitted_at": submitted_at.isoformat(),
            "started_at": started_at.isoformat(),
            "ended_at": ended_at.isoformat(),
            "project": job.project.name,
            "user": job.user.get_username(),
            "job": job.name,
            "name": stage.name,
            "kind": stage.kind,
            "priority": job.priority,
            # How fast it was on each size is not in the record: what is simulated has its least.
            "nodes": request.get("least_nodes", request["nodes"]),
            "gpus": float(int(gpus)) if gpus >= 1 else gpus,
            "cpus": max(cores, 0.001),
            "limit_s": request.get("time_limit_s"),
            "expected_s": request.get("expected_s"),
            "needs": [str(need.id) for need in stage.needs.all()],
            "state": "COMPLETED",
        }
    )
