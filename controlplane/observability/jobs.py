"""Gathers what ``/metrics`` says of jobs, projects and the scheduler's queue: a fixed number of statements."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from django.db import connection

from controlplane.fleet.world import parsed
from controlplane.jobs.step_marks import seconds_per_step
from controlplane.observability import tallies
from controlplane.observability.gathering import Gathered
from controlplane.pools import lending
from controlplane.pools.models import Budget, Quota
from scheduler.core.model.lifecycle import ACTIVE, FINAL, Cause, State
from scheduler.core.resources import charges

MOST_RUNNING: Final = 1_000
MOST_PROJECTS: Final = 2_000
PREEMPTING: Final = frozenset({Cause.PREEMPTED, Cause.RESIZE, Cause.MOVE})
OPEN: Final = [state for state in State if state not in FINAL]

_PROJECTS = "SELECT id, name, weight FROM access_project ORDER BY number LIMIT %s"
_POOLS = "SELECT id, name FROM pools_pool ORDER BY name"
_JOBS = "SELECT state, pool_id, project_id, count(*) FROM jobs_job WHERE state = ANY(%s) GROUP BY 1, 2, 3"
# A job with a waiting stage is open, which an index knows: the history is not read.
_WAITING = """
SELECT j.pool_id, coalesce(s.reasons->0->>'code', 'NotEvaluated'), count(*),
       extract(epoch FROM min(greatest(s.eligible_at, s.begin_at))
           FILTER (WHERE s.state = 'PENDING' AND s.eligible_at IS NOT NULL))::float8
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id AND j.state = ANY(%s)
WHERE s.state IN ('HELD', 'PENDING') GROUP BY 1, 2
"""
# From live attempts on, of which there are few, and not from all parts that ever were.
_HELD = """
SELECT j.project_id, j.pool_id, d.kind, d.model, d.features::text, sum(c.milli)::float8 / 1000
FROM (SELECT id, stage_id FROM jobs_attempt WHERE ended_at IS NULL) a JOIN jobs_part t ON t.attempt_id = a.id
     JOIN jobs_claim c ON c.part_id = t.id AND c.closed_at IS NULL JOIN fleet_device d ON d.id = c.device_id
     JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
GROUP BY 1, 2, 3, 4, 5
"""
_RUNNING = """
SELECT j.number::text, j.name, j.pool_id, j.project_id, s.name, s.progress::text,
       CASE jsonb_typeof(s.values->'tokens_per_s') WHEN 'number' THEN s.values->>'tokens_per_s' END,
       (SELECT c.marks::text FROM jobs_attempt a JOIN jobs_curves c ON c.attempt_id = a.id
        WHERE a.stage_id = s.id AND a.ended_at IS NULL),
       (SELECT extract(epoch FROM max(c.at))::float8 FROM jobs_checkpoint c WHERE c.stage_id = s.id),
       (SELECT a.checkpoint_every_s FROM jobs_attempt a WHERE a.stage_id = s.id AND a.ended_at IS NULL),
       count(*) OVER ()
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id WHERE s.state = ANY(%s)
ORDER BY s.started_at DESC NULLS FIRST, s.id LIMIT %s
"""


def gather(into: Gathered) -> None:
    """Gather everything of jobs and projects. A project beyond :data:`MOST_PROJECTS` is left out everywhere."""
    names = _Names()
    for name, weight in names.projects.values():
        into.set("switchyard_project_weight", weight, name)
    _open_jobs(into, names)
    _queue(into, names)
    _totals(into, names)
    _held_and_quotas(into, names)
    _budgets(into, names)
    _running(into, names)


class _Names:
    """The names of projects and pools by id, those of older projects first."""

    def __init__(self) -> None:
        self.projects: dict[uuid.UUID, tuple[str, float]] = {
            project: (name, weight) for project, name, weight in _rows(_PROJECTS, MOST_PROJECTS)
        }
        self.pools: dict[uuid.UUID, str] = dict(_rows(_POOLS))
        self._order = {project: place for place, project in enumerate(self.projects)}

    def project(self, project: uuid.UUID | None) -> str | None:
        known = self.projects.get(project) if project else None
        return known[0] if known else None

    def pool(self, pool: uuid.UUID | None) -> str | None:
        return self.pools.get(pool) if pool else None

    def place(self, project: uuid.UUID | None) -> int:
        return self._order.get(project, len(self._order)) if project else -1


def _rows(sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def _open_jobs(into: Gathered, names: _Names) -> None:
    for state, pool_id, project_id, count in sorted(_rows(_JOBS, OPEN), key=lambda row: (names.place(row[2]), row[0])):
        pool, project = names.pool(pool_id), names.project(project_id)
        if pool is None or project is None:
            into.more({"switchyard_jobs": 1})
        else:
            into.set("switchyard_jobs", count, state, pool, project)


def _queue(into: Gathered, names: _Names) -> None:
    heads: dict[str, float] = {}
    for name in names.pools.values():
        into.set("switchyard_scheduler_queue_depth", 0, name)
    for pool_id, reason, count, since in _rows(_WAITING, OPEN):
        if (pool := names.pool(pool_id)) is None:
            continue
        into.set("switchyard_jobs_unplaced", count, pool, reason)
        into.add("switchyard_scheduler_queue_depth", count, pool)
        if since is not None:
            heads[pool] = min(since, heads.get(pool, since))
    for name, since in heads.items():
        into.set("switchyard_scheduler_queue_head_timestamp_seconds", since, name)


def _totals(into: Gathered, names: _Names) -> None:
    def order(total: tallies.Total) -> tuple[Any, ...]:
        return (total.series, names.place(total.project), str(total.pool), total.word, total.bucket or 0)

    for outcome in ("started", "evicted", "skipped"):
        into.set("switchyard_scheduler_decisions_total", 0, outcome)
    for total in sorted(tallies.totals(), key=order):
        if total.series == "decision":
            into.set("switchyard_scheduler_decisions_total", total.count, total.word)
            continue
        pool, project = names.pool(total.pool), names.project(total.project)
        if (total.pool and pool is None) or (total.project and project is None):
            continue  # it was removed, or there are too many
        word = total.word.lower()
        match total.series:
            case "submitted":
                into.set("switchyard_jobs_submitted_total", total.count, pool or "", project or "")
            case "finished":
                into.set("switchyard_jobs_finished_total", total.count, pool or "", project or "", word)
            case "requeued":
                into.set("switchyard_jobs_requeued_total", total.count, pool or "", word)
            case "attempt":
                into.set("switchyard_attempts_finished_total", total.count, pool or "", word or "completed")
                if total.word in PREEMPTING:
                    into.set("switchyard_jobs_preempted_total", total.count, pool or "", word)
                    into.set("switchyard_lost_device_seconds_total", total.amount, pool or "", word)
            case "claim":
                into.set("switchyard_device_seconds_total", total.amount, project or "", total.word)
            case "wait":
                into.observe("switchyard_job_wait_seconds", tallies.WAIT_BOUNDS, total.bucket or 0, total.count,
                             total.amount, pool or "")  # fmt: skip
            case "start_error":
                into.observe("switchyard_job_start_prediction_error_seconds", tallies.START_ERROR_BOUNDS,
                             total.bucket or 0, total.count, total.amount, pool or "", word)  # fmt: skip


def _held_and_quotas(into: Gathered, names: _Names) -> None:
    held: dict[uuid.UUID, list[tuple[str, str, float, float]]] = {}
    for project_id, pool_id, kind, model, features, devices in sorted(_rows(_HELD), key=lambda r: names.place(r[0])):
        worth = charges.of(kind, parsed(features))
        held.setdefault(project_id, []).append((kind, model.lower(), worth, devices))
        if (project := names.project(project_id)) and (pool := names.pool(pool_id)):
            into.add("switchyard_project_devices_held", devices, project, pool, kind)
    quotas = list(Quota.objects.order_by("id"))
    used = {
        quota.pk: sum(
            devices * (worth if quota.normalised else 1.0)
            for kind, model, worth, devices in held.get(quota.project_id, ())
            if kind == quota.kind and quota.model.lower() in model
        )
        for quota in quotas
    }
    lent = lending.lent(quotas, used)
    for quota in quotas:
        if (project := names.project(quota.project_id)) is None:
            into.more({"switchyard_quota_used": 1})
            continue
        labels = (project, quota.kind, quota.model, str(quota.normalised).lower())
        into.set("switchyard_quota_nominal", quota.nominal, *labels)
        into.set("switchyard_quota_borrowing_limit", quota.borrowing_limit, *labels)
        into.set("switchyard_quota_lending_limit", quota.lending_limit, *labels)
        into.set("switchyard_quota_used", used[quota.pk], *labels)
        into.set("switchyard_quota_borrowed", lending.borrowed(quota, used), *labels)
        into.set("switchyard_quota_lent", round(sum(lent[quota.pk].values()), 3), *labels)


def _budgets(into: Gathered, names: _Names) -> None:
    for budget in Budget.objects.order_by("id"):
        if (project := names.project(budget.project_id)) is None:
            into.more({"switchyard_budget_used_device_seconds": 1})
            continue
        labels = (project, str(budget.pk), budget.kind, str(budget.normalised).lower(), budget.period, budget.at_end)
        into.set("switchyard_budget_device_seconds", budget.hours * 3600, *labels)
        into.set("switchyard_budget_used_device_seconds", budget.used_hours * 3600, *labels)


def _running(into: Gathered, names: _Names) -> None:
    rows, now = _rows(_RUNNING, list(ACTIVE), MOST_RUNNING), time.time()
    for number, name, pool_id, project_id, stage, progress, tokens_per_s, marks, saved_at, every_s, _count in rows:
        pool, project = names.pool(pool_id), names.project(project_id)
        into.set("switchyard_job_info", 1, number, stage, name, pool or "", project or "")
        into.set("switchyard_job_progress_ratio", _share(progress), number, stage)
        into.set("switchyard_job_tokens_per_second", float(tokens_per_s) if tokens_per_s else None, number, stage)
        into.set("switchyard_job_step_seconds", seconds_per_step(parsed(marks), now) if marks else None, number, stage)
        into.set("switchyard_job_last_checkpoint_timestamp_seconds", saved_at, number, stage)
        into.set("switchyard_job_checkpoint_interval_seconds", every_s, number, stage)
    if rows:
        into.more({"switchyard_job_info": rows[0][-1] - len(rows)})


def _share(progress: str | None) -> float | None:
    told = parsed(progress) if progress else None
    if not isinstance(told, dict) or not told.get("total") or told.get("step") is None:
        return None
    return min(1.0, max(0.0, told["step"] / told["total"]))
