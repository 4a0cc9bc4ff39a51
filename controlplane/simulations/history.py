"""This installation's own past as a trace: what finished in the last days, as the reader of traces takes it."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from controlplane.jobs.models import Stage
from scheduler.sim.traces import history

MOST_DAYS = 90


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
    return "\n".join(_line(stage) for stage in found)


def _line(stage: Stage) -> str:
    request, job = stage.request, stage.job
    asks = request["alternatives"][0]["asks"]
    special = next((ask for ask in asks if ask["kind"] != "cpu"), None)
    cores = sum(ask.get("count", 1) * ask.get("milli", 1000) for ask in asks if ask["kind"] == "cpu") / 1000
    gpus = special.get("count", 1) * special.get("milli", 1000) / 1000 if special else 0.0
    assert stage.started_at is not None, "the query asks for it"
    return history.line(
        {
            "id": str(stage.id),
            "submitted_at": job.submitted_at.isoformat(),
            "started_at": max(stage.started_at, job.submitted_at).isoformat(),
            "ended_at": stage.ended_at.isoformat() if stage.ended_at else None,
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
