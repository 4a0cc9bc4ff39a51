"""The record as the engine sees it: rows become a Snapshot in a handful of queries, a Plan becomes rows at once.

No lock is held between the two: what changed meanwhile is noticed when the plan is applied, and only that is skipped.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db import DataError, IntegrityError, connection, transaction

from controlplane import changes
from controlplane.fleet import world
from controlplane.fleet.world import parsed
from controlplane.jobs import demand, service
from controlplane.jobs.models import Decision
from controlplane.jobs.models import Stage as StageRow
from controlplane.live.history import History
from scheduler.core.cycle import Cycle
from scheduler.core.lifecycle import Cause, State
from scheduler.core.ports import Applied
from scheduler.core.reasons import CATALOGUE, sentence
from scheduler.core.speed import speed
from scheduler.core.types import (
    Alternative,
    Device,
    Grant,
    Placement,
    Plan,
    Pool,
    Project,
    Promise,
    Quota,
    Running,
    Snapshot,
    Stage,
    Start,
    Wait,
)

ACTS = {entry.code: entry.acts for entry in CATALOGUE}
# What people read of a waiting stage is refreshed this often; a new first reason or a moved entry is written at once.
REFRESH_S = 5.0
WRITES_PER_CYCLE = 400

_RULES = """
SELECT (SELECT coalesce(json_agg(p ORDER BY p.name), '[]') FROM pools_pool p),
       (SELECT coalesce(json_agg(p ORDER BY p.name), '[]') FROM access_project p),
       (SELECT coalesce(json_agg(to_jsonb(q) || jsonb_build_object('project', p.name) ORDER BY p.name, q.kind), '[]')
        FROM pools_quota q JOIN access_project p ON p.id = q.project_id)
"""
# A row's xmin changes with every update of it: what did not change since the last cycle is not read again.
_VERSIONS = "SELECT id, xmin::text FROM jobs_stage WHERE state IN ('HELD', 'PENDING')"
_WAITING = """
SELECT s.id, j.id::text, j.number, s.name, p.name, u.username, o.name, s.kind, j.priority, j.priority_class,
       extract(epoch FROM j.submitted_at)::float8, extract(epoch FROM s.eligible_at)::float8, s.state,
       extract(epoch FROM s.begin_at)::float8, extract(epoch FROM s.retry_at)::float8, s.failures, s.max_attempts,
       s.held_by, s.promise, j.name, s.request, s.xmin::text
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN access_user u ON u.id = j.user_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.id = ANY(%s) AND s.state IN ('HELD', 'PENDING')
"""
_UNMET = """
SELECT n.from_stage_id, n.to_stage_id::text, t.state
FROM jobs_stage s JOIN jobs_stage_needs n ON n.from_stage_id = s.id JOIN jobs_stage t ON t.id = n.to_stage_id
WHERE s.state IN ('HELD', 'PENDING') AND t.state <> 'COMPLETED'
"""
_RUNNING = """
SELECT s.id, j.id::text, j.number, s.name, p.name, u.username, o.name, s.kind, j.priority, j.priority_class, s.state,
       a.id, a.alternative, extract(epoch FROM coalesce(a.started_at, a.created_at))::float8, a.estimate, s.progress,
       a.stop_for::text, extract(epoch FROM a.stop_at)::float8, s.preemptions,
       (SELECT extract(epoch FROM max(c.at))::float8 FROM jobs_checkpoint c WHERE c.attempt_id = a.id),
       EXISTS (SELECT 1 FROM jobs_checkpoint c WHERE c.stage_id = s.id), a.number
FROM jobs_stage s JOIN jobs_attempt a ON a.stage_id = s.id AND a.ended_at IS NULL
     JOIN jobs_job j ON j.id = s.job_id JOIN access_project p ON p.id = j.project_id
     JOIN access_user u ON u.id = j.user_id JOIN pools_pool o ON o.id = j.pool_id
WHERE s.state IN ('STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED')
"""
_GRANTS = """
SELECT t.attempt_id, t.rank, t.node_id::text, c.device_id::text, c.milli, c.memory_bytes
FROM jobs_claim c JOIN jobs_part t ON t.id = c.part_id
WHERE c.closed_at IS NULL ORDER BY t.attempt_id, t.rank, c.device_id
"""
# Without shared storage a stage goes where its own checkpoints and the outputs of the stages it needs lie.
_PINNED = """
SELECT s.id, array_agg(DISTINCT t.node_id::text)
FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id JOIN pools_pool o ON o.id = j.pool_id
     LEFT JOIN jobs_stage_needs n ON n.from_stage_id = s.id
     JOIN jobs_attempt a ON a.stage_id = n.to_stage_id OR a.stage_id = s.id
     JOIN jobs_part t ON t.attempt_id = a.id
WHERE s.state IN ('HELD', 'PENDING') AND o.storage_path = ''
GROUP BY s.id
"""
_REPORT = """
UPDATE jobs_stage s SET reasons = v.reasons, funnel = v.funnel, expected = v.expected, planned = v.planned,
    promise = v.promise, evaluated_at = %s
FROM unnest(%s::uuid[], %s::jsonb[], %s::jsonb[], %s::jsonb[], %s::jsonb[], %s::jsonb[])
    AS v(id, reasons, funnel, expected, planned, promise)
WHERE s.id = v.id AND s.state IN ('HELD', 'PENDING')
"""


@dataclass(slots=True)
class _Written:
    """What was last written of a waiting stage, and when."""

    urgent: Any
    whole: bytes
    at: float


def moment(at: float) -> str:
    """An engine time as the API shows it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LiveStore:
    """Implements ``scheduler.core.ports.Store`` on PostgreSQL. Keep one per process: it remembers what stays."""

    def __init__(self) -> None:
        self._requests: dict[uuid.UUID, dict[str, Any]] = {}
        self._stages: dict[uuid.UUID, tuple[str, Stage]] = {}
        self._dependent: set[uuid.UUID] = set()
        self._alternatives: dict[str, tuple[Alternative, ...]] = {}
        self._written: dict[str, _Written] = {}
        self.history = History()

    # --- rows -> Snapshot

    def load(self, now: float) -> Snapshot:
        """Everything that one cycle may know."""
        with connection.cursor() as cursor:
            cursor.execute(_RULES)
            pools, projects, quotas = (parsed(column) for column in cursor.fetchone())
            nodes = world.nodes()
            waiting = self._waiting(cursor, now, pinning=any(not pool["storage_path"] for pool in pools))
            running = self._running(cursor)
        used = self.history.usage(now)
        return Snapshot(
            nodes=nodes,
            waiting=waiting,
            running=running,
            projects=tuple(Project(p["name"], p["weight"], used.get(p["name"], 0.0)) for p in projects),
            quotas=tuple(
                Quota(
                    project=quota["project"],
                    kind=quota["kind"],
                    nominal_milli=_milli(quota["nominal"]),
                    borrowing_limit_milli=_milli(quota["borrowing_limit"]),
                    lending_limit_milli=_milli(quota["lending_limit"]),
                )
                for quota in quotas
            ),
            pools=tuple(
                Pool(pool["name"], pool["profile"], pool["stopped_by"], float(pool["default_limit_s"]))
                for pool in pools
            ),
            speeds=self.history.speeds(now),
        )

    def _waiting(self, cursor: Any, now: float, *, pinning: bool) -> tuple[Stage, ...]:
        if self.history.refreshed(now):
            self._stages.clear()  # every estimate may have changed
        cursor.execute(_VERSIONS)
        versions = dict(cursor.fetchall())
        stale = [i for i, version in versions.items() if self._stages.get(i, ("",))[0] != version]
        if len(self._stages) > len(versions) - len(stale):
            self._stages = {i: known for i, known in self._stages.items() if i in versions}
            self._dependent.intersection_update(versions)
        if stale:
            cursor.execute(_WAITING, [stale])
            for *row, request, version in cursor.fetchall():
                if row[0] not in self._requests:
                    self._requests[row[0]] = parsed(request)
                self._stages[row[0]] = (version, self._stage(row, now))
                (self._dependent.add if row[11] is None else self._dependent.discard)(row[0])
        if not versions:
            self._written.clear()
            return ()
        unmet: dict[uuid.UUID, list[str]] = defaultdict(list)
        blocked: dict[uuid.UUID, str] = {}
        if self._dependent.intersection(versions):
            cursor.execute(_UNMET)
            for stage_id, need, state in cursor:
                unmet[stage_id].append(need)
                if state in {State.FAILED, State.CANCELLED}:
                    blocked[stage_id] = need
        pinned: dict[uuid.UUID, tuple[str, ...]] = {}
        if pinning:
            cursor.execute(_PINNED)
            pinned = {i: tuple(nodes) for i, nodes in cursor.fetchall()}
        waiting = []
        for i in versions:
            if i not in self._stages:
                continue  # it left the queue between the two reads
            stage = self._stages[i][1]
            if i in unmet or i in pinned:
                needs = tuple(sorted(unmet[i]))
                stage = replace(stage, unmet=needs, blocked_by=blocked.get(i), pinned=pinned.get(i, ()))
            waiting.append(stage)
        return tuple(waiting)

    def _stage(self, row: Any, now: float) -> Stage:
        (i, job, number, name, project, user, pool, kind, priority, priority_class, submitted, eligible, state) = row[
            :13
        ]
        begin, retry_at, failures, max_attempts, held_by, promise, job_name = row[13:]
        request = self._requests[i]
        return Stage(
            id=str(i),
            job=job,
            number=number,
            name=name,
            project=project,
            user=user,
            pool=pool,
            kind=kind,
            priority=priority,
            submitted_at=submitted,
            eligible_at=eligible or submitted,
            alternatives=self._ways(request),
            estimate=self.history.estimate(project, job_name, name, kind, request, now),
            state=State(state),
            nodes=request["nodes"],
            priority_class=priority_class,
            precision=request.get("precision", ""),
            preemptible=request["preemptible"],
            time_limit_s=request["time_limit_s"],
            begin_at=begin,
            retry_at=retry_at,
            attempts=failures,
            max_attempts=max_attempts,
            held_by=held_by,
            promise=msgspec.convert(parsed(promise), Promise) if promise else None,
        )

    def _learn(self, ids: list[uuid.UUID]) -> None:
        """Fetches the requests of stages not seen before; they never change."""
        missing = [i for i in ids if i not in self._requests]
        if missing:
            self._requests.update(StageRow.objects.filter(id__in=missing).values_list("id", "request"))

    def _ways(self, request: dict[str, Any]) -> tuple[Alternative, ...]:
        # Stages that ask the same share one tuple: the engine groups them by its identity.
        key = msgspec.json.encode([(each["index"], each["asks"]) for each in request["alternatives"]]).decode()
        if key not in self._alternatives:
            self._alternatives[key] = demand.ways(request)
        return self._alternatives[key]

    def _running(self, cursor: Any) -> tuple[Running, ...]:
        cursor.execute(_GRANTS)
        ranks: dict[uuid.UUID, dict[int, tuple[str, list[Grant]]]] = defaultdict(dict)
        for attempt, rank, node, device, milli, memory in cursor:
            ranks[attempt].setdefault(rank, (node, []))[1].append(Grant(device, milli, memory))
        cursor.execute(_RUNNING)
        rows = cursor.fetchall()
        self._learn([row[0] for row in rows])
        if len(self._requests) > 2 * (len(self._stages) + len(rows)) + 1000:
            live = {row[0] for row in rows} | set(self._stages)
            self._requests = {i: request for i, request in self._requests.items() if i in live}
            self._alternatives.clear()
        return tuple(self._one_running(row, ranks[row[11]]) for row in rows)

    def _one_running(self, row: Any, ranks: dict[int, tuple[str, list[Grant]]]) -> Running:
        (i, job, number, name, project, user, pool, kind, priority, priority_class, state, attempt) = row[:12]
        (
            alternative,
            started,
            estimate,
            progress,
            stop_for,
            stop_at,
            preemptions,
            checkpoint_at,
            checkpoints,
            attempt_number,
        ) = row[12:]
        request, order = self._requests[i], sorted(ranks)
        progress, estimate = parsed(progress), parsed(estimate)
        done = None
        # A resumed attempt begins in the middle: its share done says nothing about how fast it is.
        if attempt_number == 1 and progress and progress.get("total") and progress.get("step") is not None:
            done = min(1.0, progress["step"] / progress["total"])
        return Running(
            id=str(i),
            job=job,
            number=number,
            name=name,
            project=project,
            user=user,
            pool=pool,
            kind=kind,
            priority=priority,
            state=State(state),
            attempt=str(attempt),
            placement=Placement(
                alternative=alternative,
                nodes=tuple(ranks[rank][0] for rank in order),
                grants=tuple(tuple(ranks[rank][1]) for rank in order),
            ),
            started_at=started,
            estimate=self.history.as_estimate(estimate),
            priority_class=priority_class,
            precision=request.get("precision", ""),
            preemptible=request["preemptible"],
            time_limit_s=request["time_limit_s"],
            checkpoint_at=checkpoint_at,
            checkpoints=checkpoints,
            progress=done,
            evicted_for=stop_for,
            stop_by_at=stop_at + request["grace_s"] if stop_at else None,
            preemptions=preemptions,
            grace_s=request["grace_s"],
        )

    # --- Plan -> rows

    def apply(self, snapshot: Snapshot, plan: Plan, now: float) -> Applied:
        """Makes the plan true in one transaction; a gang is placed whole or not at all."""
        applied = Applied()
        if plan.starts or plan.preempts:
            at = datetime.fromtimestamp(now, UTC)
            try:
                with transaction.atomic():
                    applied = self._act(snapshot, plan, at)
            except (IntegrityError, DataError):
                # Something of it cannot be any more: once again, and this time one by one.
                with transaction.atomic():
                    applied = self._act(snapshot, plan, at, carefully=True)
        self._report(snapshot, plan, set(applied.started), now)
        return applied

    def _act(self, snapshot: Snapshot, plan: Plan, at: datetime, *, carefully: bool = False) -> Applied:
        stages = {stage.id: stage for stage in snapshot.waiting}
        victims = {run.id: run for run in snapshot.running}
        touched = {stages[s.stage].job for s in plan.starts} | {victims[p.victim].job for p in plan.preempts}
        jobs = service.lock(uuid.UUID(job) for job in touched)
        service.touch_nodes(
            uuid.UUID(node)
            for placement in [s.placement for s in plan.starts] + [victims[p.victim].placement for p in plan.preempts]
            for node in placement.nodes
        )
        ids = [s.stage for s in plan.starts] + [p.victim for p in plan.preempts]
        rows = {str(row.id): row for row in StageRow.objects.filter(id__in=ids)}
        devices = {device.id: device for node in snapshot.nodes for device in node.devices}
        placings = [
            _placing(start, stages[start.stage], rows[start.stage], devices, snapshot.speeds)
            for start in plan.starts
            if start.stage in rows and rows[start.stage].state == State.PENDING
        ]
        notes: list[service.Note] = []
        placed: set[str] = set()
        for group in [[placing] for placing in placings] if carefully else [placings] if placings else []:
            try:
                # Without care there is no savepoint: a refusal then ends the whole transaction.
                with transaction.atomic(savepoint=carefully):
                    notes += service.place(jobs, group, at)
                placed |= {str(placing.stage.id) for placing in group}
            except (IntegrityError, DataError):
                if not carefully:
                    raise
        evicted: list[str] = []
        for preempt in plan.preempts:
            row = rows.get(preempt.victim)
            if row is None or row.state not in {State.STARTING, State.RUNNING}:
                continue
            notes += service.stop([jobs[row.job_id]], [row], Cause.PREEMPTED, at, stop_for=uuid.UUID(preempt.stage))
            evicted.append(preempt.victim)
        service.settle(jobs.values(), notes, at, [rows[i] for i in placed] + [rows[i] for i in evicted])
        keys = ["jobs", "fleet", "timeline", *(f"job:{job.number}" for job in list(jobs.values())[:50])]
        transaction.on_commit(lambda: changes.announce(*keys))
        skipped = tuple(s.stage for s in plan.starts if s.stage not in placed)
        return Applied(started=tuple(sorted(placed)), evicted=tuple(evicted), skipped=skipped)

    def _report(self, snapshot: Snapshot, plan: Plan, started: set[str], now: float) -> None:
        """Writes what the cycle says of each stage that waits, where that is news."""
        stages = {stage.id: stage for stage in snapshot.waiting}
        names = {node.id: node.name for node in snapshot.nodes}
        news: list[tuple[str, ...]] = []
        for wait in plan.waits:
            was, urgent = self._written.get(wait.stage), _urgent(wait)
            same = was is not None and was.urgent == urgent
            if same and was is not None and now - was.at < REFRESH_S:
                continue
            row = self._row(wait, names)
            whole = hashlib.blake2b("".join(row[1:]).encode(), digest_size=16).digest()
            if same and was is not None and was.whole == whole and now - was.at < 30:
                continue
            self._written[wait.stage] = _Written(urgent, whole, now)
            news.append(row)
            if len(news) >= WRITES_PER_CYCLE:
                break
        for gone in [i for i in self._written if i not in stages] if len(self._written) > len(stages) else ():
            del self._written[gone]
        if not news:
            return
        columns = [[None if value == "null" else value for value in column] for column in zip(*news, strict=True)]
        with connection.cursor() as cursor:
            cursor.execute(_REPORT, [datetime.fromtimestamp(now, UTC), *columns])
        keys = sorted({f"job:{stages[row[0]].number}" for row in news})[:50]
        changes.announce("jobs", "timeline", *keys)

    def _row(self, wait: Wait, names: dict[str, str]) -> tuple[str, ...]:
        reasons = [
            {"code": r.code, "params": dict(r.params), "text": sentence(r), "acts": ACTS[r.code]} for r in wait.reasons
        ]
        expected = wait.expected and {
            "low_at": moment(wait.expected.low_at),
            "high_at": moment(wait.expected.high_at),
            "basis": wait.expected.basis,
        }
        planned = wait.planned and {
            "start_at": moment(wait.planned.start_at),
            "late_at": moment(wait.planned.late_at),
            "end_at": moment(wait.planned.end_at),
            "nodes": [names.get(node, "?") for node in wait.planned.placement.nodes],
            "devices": sorted({grant.device for grants in wait.planned.placement.grants for grant in grants}),
        }
        promise = msgspec.to_builtins(wait.planned) if wait.planned else None
        values = (reasons, [list(step) for step in wait.funnel], expected, planned, promise)
        return (wait.stage, *(msgspec.json.encode(value).decode() for value in values))


def _placing(
    start: Start, stage: Stage, row: StageRow, devices: Mapping[str, Device], measured: Mapping[tuple[str, str], float]
) -> service.Placing:
    ranks = tuple(
        (uuid.UUID(node), tuple((uuid.UUID(grant.device), grant.milli, grant.memory_bytes) for grant in grants))
        for node, grants in zip(start.placement.nodes, start.placement.grants, strict=True)
    )
    held = [devices[grant.device] for grants in start.placement.grants for grant in grants]
    deciding = [device for device in held if device.kind != "cpu"] or held
    # What history learns from the run is the work, so it must know for how fast the devices were taken.
    assumed = min(speed(stage.kind, stage.precision, device, measured) for device in deciding)
    estimate = {
        "p50_s": start.lasts.p50_s * assumed,
        "p90_s": start.lasts.p90_s * assumed,
        "basis": start.lasts.basis,
        "speed": assumed,
    }
    return service.Placing(row, start.placement.alternative, ranks, start.why, estimate)


def _milli(devices: float | None) -> int | None:
    return None if devices is None else round(devices * 1000)


def _urgent(wait: Wait) -> Any:
    """What must be written at once when it changes: the first reason, and the entry that people were promised."""
    planned = wait.planned
    return (
        wait.reasons[0].code if wait.reasons else "",
        planned and (round(planned.start_at), planned.placement),
    )


def remember(cycle: Cycle, duration_s: float, now: float) -> None:
    """Appends the decision of a cycle that decided something."""
    snapshot, plan, applied = cycle.snapshot, cycle.plan, cycle.applied
    profile = "+".join(sorted({pool.profile for pool in snapshot.pools}))
    if not (applied.started or applied.evicted or applied.skipped or plan.replanned):
        return
    numbers = {s.id: f"#{s.number}/{s.name}" for s in snapshot.waiting}
    numbers |= {r.id: f"#{r.number}/{r.name}" for r in snapshot.running}
    whys = {start.stage: start.why for start in plan.starts}
    prices = {p.victim: {"for": numbers.get(p.stage), "price": p.price, "gain": p.gain} for p in plan.preempts}
    Decision.objects.create(
        at=datetime.fromtimestamp(now, UTC),
        profile=profile[:100],
        duration_ms=round(duration_s * 1000, 3),
        waiting=len(snapshot.waiting),
        started=[{"stage": numbers[i], "why": whys[i]} for i in applied.started],
        evicted=[{"stage": numbers[i], **prices[i]} for i in applied.evicted],
        skipped=[numbers[i] for i in applied.skipped],
        replanned=plan.replanned[:300],
    )


def clock() -> float:
    """The wall clock of this process, for cycles of the live cluster."""
    return time.time()
