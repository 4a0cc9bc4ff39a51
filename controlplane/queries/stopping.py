"""What stopping running stages would do: whose jobs stop, what work is lost, and when their nodes are empty."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from django.db.models import Max, Q, QuerySet
from django.utils import timezone

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet.models import DrainMode, Node
from controlplane.jobs import drains
from controlplane.jobs.models import Attempt, Claim, Job
from controlplane.queries.expected_end import expected_end, going
from controlplane.queries.reading import etag


class StoppedStage(msgspec.Struct, frozen=True):
    """A running stage that would stop. ``lost_device_s`` is what its devices did since its newest checkpoint, or since
    it began; ``ends_by`` is when its time limit ends it, and ``expected_end_at`` when it is expected to end."""

    job: int
    name: str
    stage: str
    user: str
    project: str
    nodes: list[str]
    devices: float
    saved_at: datetime | None
    lost_device_s: float
    grace_s: float
    expected_end_at: datetime | None
    ends_by: datetime | None


class Stopping(msgspec.Struct, frozen=True):
    """What stops together: the number of ``jobs`` and their ``owners``, the ``device_s`` lost, and the stages with most
    to lose first. ``hidden`` counts stages of jobs that you may not see; they count in the numbers."""

    jobs: int
    owners: list[str]
    lost_device_s: float
    hidden: int
    stages: list[StoppedStage]


class DrainOutcome(msgspec.Struct, frozen=True):
    """What a mode of a drain does: how many stages it stops, the device-seconds that are lost, and in how many seconds
    the nodes are empty, as expected and at the latest; null where that cannot be told."""

    mode: str
    stops: int
    lost_device_s: float
    empty_in_s: float | None
    empty_within_s: float | None


class NodeDrain(msgspec.Struct, frozen=True):
    """A drain of nodes, or, in a dry run, what it would do. ``version`` is of what runs there and of the nodes' states:
    with it as ``If-Match``, the drain is refused where another one would be done than was shown."""

    nodes: list[str]
    states: list[str]
    dry_run: bool
    version: str
    affects: Stopping
    outcomes: list[DrainOutcome]


MOST_STAGES = 200


def of_jobs(jobs: Collection[Job], user: User) -> Stopping:
    """What stops with these jobs."""
    found = _stages(Attempt.objects.filter(stage__job__in=[job.pk for job in jobs], ended_at=None), timezone.now())
    return _together(found, user)


def of_drain(nodes: Sequence[Node], user: User, *, deadline_s: float | None = None, dry_run: bool = True) -> NodeDrain:
    """What a drain of these nodes does in each mode; ``deadline_s`` is of the mode ``finish``."""
    now = timezone.now()
    attempts = drains.live_on(nodes)
    found = _stages(attempts, now)
    content = repr((sorted((node.name, node.state) for node in nodes), sorted(map(str, attempts.values_list("id")))))
    named = sorted(nodes, key=lambda node: node.sort_key)
    return NodeDrain(
        nodes=[node.name for node in named],
        states=[node.state for node in named],
        dry_run=dry_run,
        version=etag(content.encode()),
        affects=_together(found, user),
        outcomes=[_finish(found, now, deadline_s), _save(found), _now(found)],
    )


def drained(shown: NodeDrain, nodes: Collection[Node]) -> NodeDrain:
    """This drain with the states of the nodes as they are after it."""
    states = {node.name: node.state for node in nodes}
    return msgspec.structs.replace(shown, states=[states[name] for name in shown.nodes])


def _finish(stages: Sequence[StoppedStage], now: datetime, deadline_s: float | None) -> DrainOutcome:
    def latest(ends: Iterable[datetime | None]) -> float | None:
        known = list(ends)
        if any(end is None for end in known):
            return None
        return max((max(0.0, (end - now).total_seconds()) for end in known if end), default=0.0)

    expected, within = latest(s.expected_end_at for s in stages), latest(s.ends_by for s in stages)
    late: list[StoppedStage] = []
    if deadline_s is not None:
        until = now + timedelta(seconds=deadline_s)
        late = [s for s in stages if s.expected_end_at is None or s.expected_end_at > until]
        last = deadline_s + max((s.grace_s for s in stages), default=0.0)
        expected, within = (last if each is None else min(each, last) for each in (expected, within))
    lost = sum(s.lost_device_s for s in late if s.saved_at is None)
    return DrainOutcome(DrainMode.FINISH, len(late), lost, expected, within)


def _save(stages: Sequence[StoppedStage]) -> DrainOutcome:
    """What has saved before saves again; what never did loses all its work."""
    lost = sum(s.lost_device_s for s in stages if s.saved_at is None)
    grace_s = max((s.grace_s for s in stages), default=0.0)
    return DrainOutcome(DrainMode.SAVE, len(stages), lost, grace_s, grace_s)


def _now(stages: Sequence[StoppedStage]) -> DrainOutcome:
    return DrainOutcome(DrainMode.NOW, len(stages), sum(s.lost_device_s for s in stages), 0.0, 0.0)


def _together(stages: Sequence[StoppedStage], user: User) -> Stopping:
    visible = set(
        Job.objects.filter(permissions.visible_jobs(user), number__in={s.job for s in stages}).values_list(
            "number", flat=True
        )
    )
    seen = sorted((s for s in stages if s.job in visible), key=lambda s: (-s.lost_device_s, s.job, s.stage))
    return Stopping(
        jobs=len({s.job for s in stages}),
        owners=sorted({s.user for s in seen}),
        lost_device_s=sum(s.lost_device_s for s in stages),
        hidden=len(stages) - len(seen),
        stages=seen[:MOST_STAGES],
    )


def _stages(attempts: QuerySet[Attempt], now: datetime) -> list[StoppedStage]:
    rows = list(
        attempts.select_related("stage__job__user", "stage__job__project")
        .annotate(saved_at=Max("stage__checkpoints__at", filter=Q(stage__checkpoints__at__lte=now)))
        .order_by("stage__job__number", "stage__index")
    )
    milli: dict[object, int] = {}
    nodes: dict[object, set[str]] = {}
    claims = Claim.objects.filter(part__attempt__in=rows, closed_at=None).select_related("device", "part__node")
    for claim in claims:
        at = claim.part.attempt_id
        milli[at] = milli.get(at, 0) + (claim.milli if claim.device.kind != "cpu" else 0)
        nodes.setdefault(at, set()).add(claim.part.node.name)
    return [_stage(row, milli.get(row.pk, 0), sorted(nodes.get(row.pk, ())), now) for row in rows]


def _stage(attempt: Attempt, milli: int, nodes: list[str], now: datetime) -> StoppedStage:
    stage, job = attempt.stage, attempt.stage.job
    saved: datetime | None = attempt.saved_at  # type: ignore[attr-defined]  # annotated
    began = attempt.started_at or now
    since = max(began, saved) if saved else began
    ending = expected_end(going(attempt), now)
    limit_s = stage.request.get("time_limit_s")
    ends_by = (attempt.started_at or attempt.created_at) + timedelta(seconds=limit_s) if limit_s else None
    grace_s = float(stage.request["grace_s"])
    if attempt.stop_at:
        left = attempt.stop_grace_s if attempt.stop_grace_s is not None else grace_s
        ends_by = attempt.stop_at + timedelta(seconds=left)
        ending = type(ending)(expected_at=max(now, ends_by))
    return StoppedStage(
        job=job.number,
        name=job.name,
        stage=stage.name,
        user=job.user.get_username(),
        project=job.project.name,
        nodes=nodes,
        devices=milli / 1000,
        saved_at=saved,
        # Of a stage without accelerators, the time that it ran is lost.
        lost_device_s=round(max(0.0, (now - since).total_seconds()) * (milli or 1000) / 1000, 1),
        grace_s=grace_s,
        expected_end_at=ending.expected_at,
        ends_by=ends_by,
    )
