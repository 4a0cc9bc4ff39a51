"""Jobs and stages as the API shows them, read in a fixed number of queries, however many there are."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.db.models import QuerySet

from controlplane.clauses import told
from controlplane.fleet.models import Device
from controlplane.jobs import constraint, demand, funnel
from controlplane.jobs import models as rows
from controlplane.natural import natural_key
from controlplane.queries.clauses import Clause, clauses
from scheduler.core.model.lifecycle import ACTIVE, WAITING, State


class Priority(msgspec.Struct, frozen=True):
    """A job's class and its number; bigger is more urgent."""

    class_: str = msgspec.field(name="class")
    value: int


class ClaimedDevice(msgspec.Struct, frozen=True):
    """A share of a device that an attempt holds or held, or a ``partition`` of it from its first ``slot`` on."""

    uuid: str
    kind: str
    vendor: str
    model: str
    index: int
    milli: int
    memory_bytes: int
    simulated: bool
    partition: str | None
    slot: int | None


class Placed(msgspec.Struct, frozen=True):
    """One rank of an attempt: its node and the devices there."""

    node: str
    rank: int
    devices: list[ClaimedDevice]


class PlannedDevice(msgspec.Struct, frozen=True):
    """A device that the timetable keeps for a stage."""

    uuid: str
    node: str
    kind: str
    model: str
    index: int


class Planned(msgspec.Struct, frozen=True):
    """The timetable's entry of a waiting stage."""

    start_at: str
    end_at: str
    devices: list[PlannedDevice]


class ExpectedStart(msgspec.Struct, frozen=True):
    """The expected start of a stage, and its basis. ``held`` of the last ``seen`` predictions in its pool contained the
    actual start."""

    low_at: str
    high_at: str
    basis: str
    basis_said: list[Clause] = []
    held: int = 0
    seen: int = 0


class RunTime(msgspec.Struct, frozen=True):
    """The predicted run time of a stage: half of such stages end by ``p50`` seconds, nine of ten by ``p90``. Both are
    null if unknown; ``basis`` tells the basis of the prediction, or why there is none. ``held`` of the last ``seen``
    stages of its pool ended by their ``p90``."""

    p50: float | None
    p90: float | None
    basis: str
    basis_said: list[Clause] = []
    held: int = 0
    seen: int = 0


class WaitReason(msgspec.Struct, frozen=True):
    """Why a stage waits, and who can change that. Where a value in ``params`` is a text, ``<name>_said`` there has it
    in clauses."""

    code: str
    text: str
    acts: str
    params: dict[str, Any]


class StageProgress(msgspec.Struct, frozen=True):
    """The progress that a stage reported."""

    step: int | None
    total: int | None
    phase: str


class NewestCheckpoint(msgspec.Struct, frozen=True):
    """The newest resumable point of a stage."""

    step: int
    path: str
    at: datetime


class UtilizationPolicy(msgspec.Struct, frozen=True):
    """What happens to a stage whose accelerators are used to less than ``min`` on average over ``window_s`` seconds."""

    min: float
    window_s: float
    action: str


class Stage(msgspec.Struct, frozen=True):
    """The unit that is scheduled. ``placed`` and ``why_here`` are of the newest attempt. ``detail_said`` and
    ``why_here_said`` are the same in clauses; empty for free text.

    It asks for ``memory_bytes`` on each node, 0 for no limit of its own, and may run ``only_on`` some nodes and
    labels, not on those to ``avoid``, and where ``constraint`` holds. It has been in its ``state`` since
    ``state_at``. ``nodes`` is the number of nodes on which it runs or ran, or the least number while it waits; an
    elastic stage may have ``least_nodes`` to ``most_nodes``. ``checkpoint_every_s`` is the checkpoint interval of
    its newest attempt in seconds, and ``checkpoint_every_why`` its reason; null and empty without an attempt.
    ``held_idle`` tells how little the newest attempt used its devices when its ``utilization_policy`` acted on it;
    empty if it did not.
    """

    id: uuid.UUID
    name: str
    kind: str
    index: int
    needs: list[str]
    state: State
    state_at: datetime | None
    substate: str
    substate_said: list[Clause]
    cause: str
    detail: str
    detail_said: list[Clause]
    exit_code: int | None
    asks: str
    asks_said: list[Clause]
    device_kind: str
    memory_bytes: int
    only_on: list[str]
    avoid: list[str]
    constraint: str
    reservation: str
    deadline_at: datetime | None
    nodes: int
    least_nodes: int
    most_nodes: int
    attempts: int
    max_attempts: int
    preemptions: int
    time_limit_s: float | None
    preemptible: bool
    placed: list[Placed]
    why_here: str
    why_here_said: list[Clause]
    progress: StageProgress | None
    values: dict[str, Any]
    reason: WaitReason | None
    reasons: list[WaitReason]
    funnel: list[tuple[str, int]]
    funnel_said: list[Clause]
    expected_start: ExpectedStart | None
    expected_s: RunTime | None
    planned: Planned | None
    evaluated_at: datetime | None
    begin_at: datetime | None
    retry_at: datetime | None
    eligible_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    checkpoint: NewestCheckpoint | None
    checkpoint_every_s: float | None
    checkpoint_every_why: str
    checkpoint_every_why_said: list[Clause]
    utilization_policy: UtilizationPolicy | None
    held_idle: str
    held_idle_said: list[Clause]


class ArrayPlace(msgspec.Struct, frozen=True):
    """The array of which a job is an element, by its number, and the element's index."""

    number: int
    index: int


class CodeSource(msgspec.Struct, frozen=True):
    """The git repository and revision from which a job has its code. ``commit`` is the full id of the commit that all
    its attempts use, null until it was fetched; ``fault`` is the code of why the last try failed."""

    url: str
    rev: str
    commit: str | None
    secret: str | None
    fault: str


class NodeOrigin(msgspec.Struct, frozen=True):
    """The node on which a job was submitted itself while it was cut off, and the account of that node. ``joined_at`` is
    when the job came into the record."""

    node: str
    account: str
    joined_at: datetime


class JobDependency(msgspec.Struct, frozen=True):
    """An earlier job or array for whose end a job waits, by its number; of a singleton, whose ``job`` is empty, all
    earlier jobs of the same user and name. ``verdict`` is empty until it is decided, then *met* or *never*."""

    job: str
    when: str
    verdict: str


class Job(msgspec.Struct, frozen=True):
    """A job with its stages and its result. ``array`` is null unless it is an element of one, and ``parameters`` are
    those of a sweep. ``submitted_on`` is null unless a node accepted it while it was cut off."""

    id: uuid.UUID
    number: int
    name: str
    project: str
    user: str
    pool: str
    priority: Priority
    state: State
    cause: str
    simulated: bool
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    progress: float | None
    reason: WaitReason | None
    labels: dict[str, str]
    bundle: str
    source: CodeSource | None
    array: ArrayPlace | None
    parameters: dict[str, Any]
    depends_on: list[JobDependency]
    submitted_on: NodeOrigin | None
    stages: list[Stage]


@dataclass(slots=True)
class _Related:
    """Rows that belong to the stages, by stage id."""

    needs: dict[uuid.UUID, list[uuid.UUID]] = field(default_factory=lambda: defaultdict(list))
    attempts: dict[uuid.UUID, rows.Attempt] = field(default_factory=dict)
    claims: dict[uuid.UUID, list[rows.Claim]] = field(default_factory=lambda: defaultdict(list))
    # Parts of attempts that hold no device here: they are at another site.
    away: dict[uuid.UUID, rows.Part] = field(default_factory=dict)
    checkpoints: dict[uuid.UUID, rows.Checkpoint] = field(default_factory=dict)
    devices: dict[str, PlannedDevice] = field(default_factory=dict)


# What a stage shows of its claims: the rows of nodes and devices are many and wide.
_CLAIMED: Final = (
    "milli", "memory_bytes", "partition", "slots", "part__rank", "part__attempt_id", "part__substate",
    "part__substate_said", "part__node__name", "device__uuid", "device__kind", "device__vendor", "device__model",
    "device__index", "device__simulated",
)  # fmt: skip


def whole(jobs: QuerySet[rows.Job]) -> QuerySet[rows.Job]:
    """Add the joins to the query that every shown job needs."""
    return jobs.select_related("project", "user", "pool", "source", "submitted_locally__node").defer("spec")


def shown(jobs: Iterable[rows.Job]) -> list[Job]:
    """These jobs with all their stages, in the same order."""
    jobs = list(jobs)
    stages: dict[uuid.UUID, list[rows.Stage]] = defaultdict(list)
    for stage in rows.Stage.objects.filter(job__in=[job.id for job in jobs]).order_by("index"):
        stages[stage.job_id].append(stage)
    related = _related([stage for each in stages.values() for stage in each])
    waits: dict[uuid.UUID, list[JobDependency]] = defaultdict(list)
    for one in rows.Dependency.objects.filter(job__in=[job.id for job in jobs]):
        waits[one.job_id].append(JobDependency(one.name, one.when, one.verdict))
    return [
        _job(job, [_stage(stage, stages[job.id], related, job) for stage in stages[job.id]], waits[job.id])
        for job in jobs
    ]


def _related(stages: list[rows.Stage]) -> _Related:
    """Read the rows that belong to these stages, in six queries at most."""
    found, counts = _Related(), Counter(stage.job_id for stage in stages)
    if several := [stage.id for stage in stages if counts[stage.job_id] > 1]:
        through = rows.Stage.needs.through.objects.filter(from_stage__in=several)
        for needing, needed in through.values_list("from_stage_id", "to_stage_id"):
            found.needs[needing].append(needed)
    tried = [stage.id for stage in stages if stage.attempt_count]
    if tried:
        newest = rows.Attempt.objects.filter(stage__in=tried).order_by("stage_id", "-number").distinct("stage_id")
        found.attempts = {attempt.stage_id: attempt for attempt in newest}
        claims = rows.Claim.objects.filter(part__attempt__in=[attempt.id for attempt in found.attempts.values()])
        wanted = claims.select_related("part__node", "device").only(*_CLAIMED)
        for claim in wanted.order_by("part__rank", "device__kind", "device__index"):
            found.claims[claim.part.attempt_id].append(claim)
        if bare := [attempt.id for attempt in found.attempts.values() if attempt.id not in found.claims]:
            parts = rows.Part.objects.filter(attempt__in=bare, node__is_site=True).select_related("node")
            found.away = {part.attempt_id: part for part in parts}
        points = rows.Checkpoint.objects.filter(stage__in=tried).order_by("stage_id", "-step", "-at")
        found.checkpoints = {point.stage_id: point for point in points.distinct("stage_id")}
    planned = {device for stage in stages for device in (stage.planned or {}).get("devices", ())}
    found.devices = planned_devices(planned) if planned else {}
    return found


def planned_devices(ids: Iterable[str]) -> dict[str, PlannedDevice]:
    """The devices with these row ids, as the timetable shows them."""
    chosen = Device.objects.filter(id__in=list(ids)).values_list("id", "uuid", "node__name", "kind", "model", "index")
    return {str(row[0]): PlannedDevice(*row[1:]) for row in chosen}


def _job(job: rows.Job, stages: list[Stage], waits: list[JobDependency]) -> Job:
    return Job(
        id=job.id,
        number=job.number,
        name=job.name,
        project=job.project.name,
        user=job.user.get_username(),
        pool=job.pool.name,
        priority=Priority(class_=job.priority_class, value=job.priority),
        state=State(job.state),
        cause=job.cause,
        simulated=any(device.simulated for stage in stages for rank in stage.placed for device in rank.devices),
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        progress=_progress_of(stages),
        reason=next((stage.reason for stage in stages if stage.state in WAITING and stage.reason), None),
        labels=job.labels,
        bundle=job.bundle,
        source=_source(job.source),
        array=ArrayPlace(job.array_id, job.array_index or 0) if job.array_id is not None else None,
        parameters=job.parameters or {},
        depends_on=waits,
        submitted_on=_origin(job),
        stages=stages,
    )


def _origin(job: rows.Job) -> NodeOrigin | None:
    found = getattr(job, "submitted_locally", None)
    if found is None:
        return None
    return NodeOrigin(found.node.name if found.node is not None else "", found.account, found.joined_at)


def _source(row: rows.GitSource | None) -> CodeSource | None:
    return None if row is None else CodeSource(row.url, row.rev, row.commit or None, row.secret or None, row.fault)


def _progress_of(stages: list[Stage]) -> float | None:
    """The share of the job's work that is done, with equal weight per stage; None if unknown."""
    shares = [1.0 if stage.state == State.COMPLETED else _share(stage.progress) for stage in stages]
    known = [share for share in shares if share is not None]
    return round(sum(known) / len(shares), 4) if known else None


def _share(progress: StageProgress | None) -> float | None:
    if progress is None or not progress.total or progress.step is None:
        return None
    return min(1.0, max(0.0, progress.step / progress.total))


def _stage(stage: rows.Stage, siblings: list[rows.Stage], related: _Related, job: rows.Job) -> Stage:
    names = {each.id: each.name for each in siblings}
    attempt = related.attempts.get(stage.id)
    claims = related.claims.get(attempt.id, []) if attempt else []
    state, waits = State(stage.state), State(stage.state) in WAITING
    reasons = [_reason(each) for each in stage.reasons] if waits else []
    point = related.checkpoints.get(stage.id)
    away = related.away.get(attempt.id) if attempt else None
    places = [Placed(away.node.name, away.rank, [])] if away else placed(claims)
    often = attempt.said.get("saves", []) if attempt else []
    idle = attempt.said.get("held_idle", []) if attempt else []
    policy = stage.request.get("utilization_policy")
    asked = demand.asked(stage.request)
    deadline = demand.deadline_at(stage.request, job.submitted_at.timestamp())
    filters = funnel.steps(stage.funnel, job.pool.name) if waits else []
    part = (away or next((claim.part for claim in claims), None)) if state in ACTIVE else None
    return Stage(
        id=stage.id,
        name=stage.name,
        kind=stage.kind,
        index=stage.index,
        needs=sorted((names[need] for need in related.needs.get(stage.id, ()) if need in names), key=natural_key),
        state=state,
        state_at=stage.state_at,
        substate=part.substate if part else "",
        substate_said=clauses(part.substate_said if part else []),
        cause=stage.cause,
        detail=stage.detail,
        detail_said=clauses(stage.said),
        exit_code=stage.exit_code,
        asks=asked.text,
        asks_said=clauses(asked.said),
        device_kind=demand.device_kind(stage.request),
        memory_bytes=demand.memory_bytes(stage.request),
        only_on=stage.request.get("only_on", []),
        avoid=stage.request.get("avoid", []),
        constraint=constraint.written(stage.request.get("constraint", [])),
        reservation=stage.request.get("reservation", ""),
        deadline_at=datetime.fromtimestamp(deadline, UTC) if deadline is not None else None,
        nodes=len(places) if places and state not in WAITING else demand.least_nodes(stage.request),
        least_nodes=demand.least_nodes(stage.request),
        most_nodes=stage.request["nodes"],
        attempts=stage.attempt_count,
        max_attempts=stage.max_attempts,
        preemptions=stage.preemptions,
        time_limit_s=stage.request["time_limit_s"],
        preemptible=stage.request["preemptible"],
        placed=places,
        why_here=attempt.why_here if attempt else "",
        why_here_said=clauses(attempt.said.get("why_here")) if attempt else [],
        progress=_progress(stage.progress),
        values=stage.values,
        reason=reasons[0] if reasons else None,
        reasons=reasons,
        funnel=[(step.text, count) for step, count in filters],
        funnel_said=clauses([one for step, _ in filters for one in step.said]),
        expected_start=expected(stage.expected) if waits else None,
        expected_s=msgspec.convert(stage.lasts, RunTime) if waits and stage.lasts else None,
        planned=_planned(stage.planned, related.devices) if waits else None,
        evaluated_at=stage.evaluated_at,
        begin_at=stage.begin_at,
        retry_at=stage.retry_at,
        eligible_at=stage.eligible_at,
        started_at=stage.started_at,
        ended_at=stage.ended_at,
        checkpoint=NewestCheckpoint(point.step, point.path, point.at) if point else None,
        checkpoint_every_s=attempt.checkpoint_every_s if attempt else None,
        checkpoint_every_why=told(*often).text,
        checkpoint_every_why_said=clauses(often),
        utilization_policy=UtilizationPolicy(**policy) if policy else None,
        held_idle=told(*idle).text,
        held_idle_said=clauses(idle),
    )


def placed(claims: Iterable[rows.Claim]) -> list[Placed]:
    """Claims of one attempt, by rank. Their parts, nodes and devices must be loaded."""
    ranks: dict[int, Placed] = {}
    for claim in claims:
        device = claim.device
        place = ranks.setdefault(claim.part.rank, Placed(claim.part.node.name, claim.part.rank, []))
        place.devices.append(
            ClaimedDevice(
                uuid=device.uuid,
                kind=device.kind,
                vendor=device.vendor,
                model=device.model,
                index=device.index,
                milli=claim.milli,
                memory_bytes=claim.memory_bytes,
                simulated=device.simulated,
                partition=claim.partition or None,
                slot=claim.slots.lower if claim.slots else None,
            )
        )
    return [ranks[rank] for rank in sorted(ranks)]


def _reason(stored: Mapping[str, Any]) -> WaitReason:
    return WaitReason(
        code=stored["code"],
        text=stored.get("text", ""),
        acts=stored.get("acts", ""),
        params=stored.get("params", {}),
    )


def _progress(stored: Mapping[str, Any] | None) -> StageProgress | None:
    if not stored:
        return None
    return StageProgress(stored.get("step"), stored.get("total"), stored.get("phase") or "")


def expected(stored: Mapping[str, Any] | None) -> ExpectedStart | None:
    """The expected start as it is stored of a stage."""
    return msgspec.convert(stored, ExpectedStart) if stored else None


def _planned(stored: Mapping[str, Any] | None, devices: Mapping[str, PlannedDevice]) -> Planned | None:
    if not stored:
        return None
    chosen = [devices[each] for each in stored.get("devices", ()) if each in devices]
    return Planned(stored["start_at"], stored["end_at"], chosen)
