"""Carries out ``utilization_policy``: finds stages that hold accelerators and hardly use them, by stored telemetry.

The measure is the mean utilisation of all accelerators of a running attempt over its window. There is no verdict before
the attempt has run for the whole window, nor while one of its devices was measured in less than four fifths of the
minutes: unknown is not idle. A shared device counts with what all its holders use. Each attempt is acted on once, which
is recorded in the transaction of the action.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction

from controlplane import changes
from controlplane.clauses import Told, clause, told
from controlplane.jobs import service
from controlplane.jobs.models import Attempt
from controlplane.jobs.service import Note
from scheduler.core.model.lifecycle import Cause, State

EVERY_S: Final = 60.0
MEASURED: Final = 0.8
# A long window is judged more seldom: a twentieth later is early enough, and it has many measurements.
JUDGED_WITHIN: Final = 20

_MEASURED = """
SELECT w.attempt, min(coalesce(u.minutes, 0)), avg(u.mean)
FROM unnest(%s::uuid[], %s::timestamptz[]) AS w(attempt, since)
JOIN jobs_part p ON p.attempt_id = w.attempt
JOIN jobs_claim c ON c.part_id = p.id AND c.closed_at IS NULL
JOIN fleet_device d ON d.id = c.device_id AND d.kind <> 'cpu'
LEFT JOIN LATERAL (
    SELECT count(DISTINCT date_trunc('minute', s.at)) AS minutes, avg(s.utilisation) AS mean
    FROM fleet_device_sample s
    WHERE s.device_id = d.id AND s.at > w.since AND s.at <= %s AND s.utilisation IS NOT NULL) u ON true
GROUP BY w.attempt
"""


def judge(now: datetime) -> int:
    """Act on every attempt whose devices were idle for the window of its policy; return how many."""
    due = [attempt for attempt in _watched() if _is_due(attempt, now)]
    used = _used(due, now) if due else {}
    return sum(_act(attempt, used[attempt.pk], now) for attempt in due if attempt.pk in used)


def _watched() -> Sequence[Attempt]:
    """Return the running attempts with a policy that were not acted on."""
    running = Attempt.objects.filter(
        ended_at=None, stop_why="", stage__state=State.RUNNING, stage__request__has_key="utilization_policy"
    )
    return list(running.exclude(said__has_key="held_idle").select_related("stage"))


def policy_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy in the request of a stage."""
    return dict(request["utilization_policy"])


def _is_due(attempt: Attempt, now: datetime) -> bool:
    """Whether it has run for its window, and is judged in this run."""
    window_s = policy_of(attempt.stage.request)["window_s"]
    since = attempt.stage.state_at
    if since is None or since > now - timedelta(seconds=window_s):
        return False
    period_s = max(EVERY_S, window_s / JUDGED_WITHIN)
    return now.timestamp() // period_s != (now.timestamp() - EVERY_S) // period_s


def _used(attempts: Sequence[Attempt], now: datetime) -> dict[uuid.UUID, float]:
    """Return the mean utilisation of the accelerators of those attempts that were measured and idle."""
    policies = {attempt.pk: policy_of(attempt.stage.request) for attempt in attempts}
    since = [now - timedelta(seconds=policies[attempt.pk]["window_s"]) for attempt in attempts]
    with connection.cursor() as cursor:
        cursor.execute(_MEASURED, [[attempt.pk for attempt in attempts], since, now])
        rows = cursor.fetchall()
    return {
        attempt: mean
        for attempt, minutes, mean in rows
        if minutes >= MEASURED * policies[attempt]["window_s"] / 60 and mean < policies[attempt]["min"]
    }


def _act(attempt: Attempt, used: float, now: datetime) -> bool:
    """Do what the policy says, unless the attempt ends or was acted on meanwhile; return whether it was done."""
    with transaction.atomic():
        job = service.lock([attempt.stage.job_id])[attempt.stage.job_id]
        attempt = Attempt.objects.select_related("stage").get(pk=attempt.pk)
        stage = attempt.stage
        if attempt.ended_at or attempt.stop_why or "held_idle" in attempt.said or stage.state != State.RUNNING:
            return False
        policy = policy_of(stage.request)
        why = _why(policy, used)
        attempt.said = {**attempt.said, "held_idle": why.said}
        attempt.save(update_fields=["said"])
        event = told(clause("HeldIdle", stage=stage.name, why=why))
        params = {"action": policy["action"], "used": round(used, 4), **policy}
        notes = [Note(job, "held_idle", event, "engine", stage.name, attempt.number, params)]
        if policy["action"] != "notify":
            cause = Cause.HELD_IDLE if policy["action"] == "stop" else Cause.REQUEUED
            notes += service.stop([job], [stage], cause, now, note=why)
        service.settle([job], notes, now)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("jobs", f"job:{job.number}"))
    return True


def _why(policy: Mapping[str, Any], used: float) -> Told:
    return told(clause("IdleDevices", used=f"{used:.1%}", window_s=policy["window_s"], least=f"{policy['min']:.1%}"))
