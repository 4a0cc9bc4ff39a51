"""Makes the replicas of services follow their plans: submits, drains and cancels their jobs. A worker does it.

A service is locked meanwhile, so that two workers that look at once do it once. What a replica is follows from its job
and from what the routers reported; the plan is that of :mod:`controlplane.services.reconcile`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _
from django.utils.translation import override

from agents.protocol import Phase
from controlplane.jobs import service as jobs
from controlplane.jobs import spec as jobfile
from controlplane.jobs.models import Job, Part
from controlplane.services import autoscale, file, promotions
from controlplane.services.first_bytes import added
from controlplane.services.models import (
    FIRST_PORT,
    LAST_PORT,
    InferenceService,
    Promotion,
    Replica,
    ServiceMinute,
    ServiceRevision,
)
from controlplane.services.reconcile import ReplicaHere, ReplicaStanding, ServicePlan, Wish, reconcile
from controlplane.services.service import LABEL
from scheduler.core.model.lifecycle import FINAL, State

log = logging.getLogger(__name__)

MOST_IN_A_LOOK: Final = 200
# A revision of which so many replicas in a row never answered cannot serve.
PATIENCE: Final = 4
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
# A replica that served for so long did not fail at once.
STEADY_S: Final = 60.0
# So long after its last report a router is considered away: nothing is concluded from its silence.
HEARD_S: Final = 10.0
LONGEST_FAULT: Final = 500
NO_PORT_PAUSE_S: Final = 10.0
PORT_NAME: Final = "replica"
# The name of the input that is the promoted model.
MODEL: Final = "model"


@dataclass(slots=True)
class _Seen:
    """A replica, its job, and the part that answers, if it runs."""

    row: Replica
    job: Job | None
    part: Part | None


def key_of(replica: Replica) -> str:
    """Return the key that a replica asks for, which routers send. It is stored nowhere."""
    return salted_hmac("controlplane.services.replica", str(replica.pk), algorithm="sha256").hexdigest()


def follow_all(now: datetime) -> int:
    """Let all services have what they are to have; return how many were looked at."""
    try:
        promotions.note_completed(now)
        promotions.refuse_homeless(now)
    except Exception:
        # Services go on without it.
        log.exception("completed stages could not be noted for promotion")
    numbers = list(InferenceService.objects.order_by("pk").values_list("pk", flat=True)[:MOST_IN_A_LOOK])
    return sum(follow_one(number, now) for number in numbers)


def follow_one(number: int, now: datetime) -> bool:
    """Let a service have what it is to have, unless somebody else looks at it just now; return whether it was looked
    at."""
    try:
        with transaction.atomic():
            row = (
                InferenceService.objects.select_for_update(skip_locked=True, of=("self",))
                .select_related("user", "project")
                .filter(pk=number)
                .first()
            )
            if row is not None:
                follow(row, now)
    except Exception:
        # One service that cannot be followed holds up no other.
        log.exception("service %s could not be followed", number)
        return False
    return row is not None


def follow(row: InferenceService, now: datetime) -> ServicePlan:
    """Look at a locked service, and do what its plan says."""
    revisions = {one.number: one for one in row.revisions.all()}
    seen = _look(row, now)
    for each in seen:
        _note_end(each, revisions[each.row.revision.number], now)
    here = [each for each in seen if each.row.ended_at is None]
    for each in here:
        _note_ready(each, revisions[each.row.revision.number], now)
    is_heard = row.heard_at is not None and now - row.heard_at < timedelta(seconds=HEARD_S)
    is_ready = [each for each in here if each.row.ready_at and each.row.is_healthy and each.row.drains_at is None]
    ready = sum(each.row.revision.number == row.revision for each in is_ready)
    if promotions.advance(row, revisions, ready, PATIENCE, now):
        revisions = {one.number: one for one in row.revisions.all()}
    _scale(row, here, now)
    wish = wish_of(row, revisions, now)
    plan = reconcile(wish, [_standing(each, row, is_heard, now) for each in here])
    by_id = {each.row.pk: each for each in here}
    for number in plan.drain:
        by_id[number].row.drains_at = now
        by_id[number].row.save(update_fields=["drains_at"])
    _stop([by_id[number] for number in plan.stop], row, now)
    for number in plan.start:
        _start(row, revisions[number], now)
    _tell(row, revisions, wish)
    if row.deleted_at is not None and not here:
        row.delete()
        return plan
    row.save(update_fields=["wanted", "wishes", "fault"])
    return plan


def _look(row: InferenceService, now: datetime) -> list[_Seen]:
    open_ = list(Replica.objects.select_related("revision").filter(revision__service=row, ended_at=None))
    found = {job.number: job for job in Job.objects.filter(number__in=[one.job for one in open_ if one.job])}
    parts = parts_of(open_)
    return [_Seen(one, found.get(one.job or 0), parts.get(one.job or 0)) for one in open_]


def _note_end(each: _Seen, revision: ServiceRevision, now: datetime) -> None:
    """Note that the job of a replica has ended, and count it where nobody had it stopped."""
    row, job = each.row, each.job
    if job is not None and State(job.state) not in FINAL:
        return
    row.ended_at = now
    if row.stopped_at is None:
        row.fault = _why(job)
        if row.ready_at is not None and now - row.ready_at > timedelta(seconds=STEADY_S):
            revision.failures = 0
        _count_failure(revision, row.fault, now)
    row.save(update_fields=["ended_at", "fault"])


def _count_failure(revision: ServiceRevision, fault: str, now: datetime) -> None:
    """Count one more replica in a row that failed: the next is started ever later, and of what never served none."""
    revision.failures += 1
    revision.fault = fault
    pause = min(FIRST_PAUSE_S * 2 ** min(revision.failures - 1, 10), LONGEST_PAUSE_S)
    revision.retry_at = now + timedelta(seconds=pause)
    if revision.ready_at is None and revision.failures >= PATIENCE:
        revision.is_failed = True
    revision.save(update_fields=["failures", "fault", "retry_at", "is_failed"])


def _why(job: Job | None) -> str:
    if job is None:
        return "its job is gone"
    stage = job.stages.order_by("index").first()
    said = f": {stage.detail}" if stage is not None and stage.detail else ""
    return f"job #{job.number} ended {job.state} ({job.cause or 'exit 0'}){said}"[:LONGEST_FAULT]


def _note_ready(each: _Seen, revision: ServiceRevision, now: datetime) -> None:
    """Note when a replica began to run, and when it answered first; one whose stage was queued again begins anew."""
    row = each.row
    before = (row.running_at, row.ready_at)
    if each.part is None:
        row.running_at = row.ready_at = None
    else:
        if row.running_at is None:
            row.running_at = now
        fresh = row.news_at is not None and row.news_at >= row.running_at
        if row.ready_at is None and row.is_healthy and fresh:
            row.ready_at = now
            if revision.ready_at is None:
                revision.ready_at = now
            revision.fault = ""
            revision.save(update_fields=["ready_at", "fault"])
        if row.ready_at is not None and revision.failures and now - row.ready_at > timedelta(seconds=STEADY_S):
            revision.failures = 0
            revision.save(update_fields=["failures"])
    if (row.running_at, row.ready_at) != before:
        row.save(update_fields=["running_at", "ready_at"])


def _standing(each: _Seen, service: InferenceService, is_heard: bool, now: datetime) -> ReplicaHere:
    row = each.row
    if row.drains_at is not None:
        standing = ReplicaStanding.DRAINING
    elif each.part is None:
        standing = ReplicaStanding.STARTING
    elif row.ready_at is None:
        began = row.running_at or now
        is_late = is_heard and now - began > timedelta(seconds=service.settings["start_s"])
        standing = ReplicaStanding.UNHEALTHY if is_late else ReplicaStanding.STARTING
    else:
        standing = ReplicaStanding.UNHEALTHY if is_heard and not row.is_healthy else ReplicaStanding.READY
    drains_s = (now - row.drains_at).total_seconds() if row.drains_at else 0.0
    # Nothing was ever sent to one that never answered.
    is_left = row.is_left or row.ready_at is None or each.part is None
    return ReplicaHere(row.pk, row.revision.number, standing, row.outstanding, is_left, drains_s)


def _scale(row: InferenceService, here: Iterable[_Seen], now: datetime) -> None:
    given = row.settings
    if row.deleted_at is not None:
        row.wanted, row.wishes = 0, []
        return
    _by_load(row, here, now)
    # A revision on trial shows that it can serve before anybody asks.
    if not row.wanted and given["max"] and row.promotions.filter(state=Promotion.PromotionState.TRIAL).exists():
        row.wanted = 1


def _by_load(row: InferenceService, here: Iterable[_Seen], now: datetime) -> None:
    given = row.settings
    if given["min"] == given["max"]:
        row.wanted, row.wishes = given["min"], []
        return
    counts = added(*(minute.first_bytes for minute in row.minutes.filter(at__gt=now - timedelta(seconds=120))))
    told = sum((each.row.load.get("running") or 0) + (each.row.load.get("waiting") or 0) for each in here)
    asked_at = row.asked_at or row.changed_at
    signals = autoscale.Signals(
        row.queued,
        # Engines also tell of what came by other ways.
        max(row.active, told),
        counts,
        (now - max(asked_at, row.changed_at)).total_seconds(),
        row.tokens,
        _start_s(row),
    )
    bounds = autoscale.Bounds(
        given["min"],
        given["max"],
        given["target_requests"],
        given["target_first_byte_s"],
        given["idle_s"],
        given.get("target_tokens"),
    )
    history = [
        autoscale.Moment(float(each[0]), int(each[1]), float(each[2]), bool(each[3]))
        for each in row.wishes
        if len(each) == 4
    ]
    row.wanted, kept = autoscale.wanted(row.wanted, bounds, signals, history, now.timestamp())
    row.wishes = [[round(one.at, 3), one.asked, round(one.load, 4), one.is_late] for one in kept]


def _start_s(row: InferenceService) -> float:
    """Return how long the newest replicas took from their submission to their first answer: the middle one of five."""
    newest = Replica.objects.filter(revision__service=row, ready_at__isnull=False).order_by("-ready_at")[:5]
    took = sorted((one.ready_at - one.made_at).total_seconds() for one in newest if one.ready_at)
    return took[len(took) // 2] if took else autoscale.USUAL_START_S


def wish_of(row: InferenceService, revisions: dict[int, ServiceRevision], now: datetime) -> Wish:
    """Return what a service is to have, given its revisions by their numbers."""
    given = row.settings
    return Wish(
        row.revision,
        row.wanted,
        former=row.former if row.former in revisions else None,
        surge=given["surge"],
        unavailable=given["unavailable"],
        canary=given["canary"],
        drain_s=given["drain_s"],
        failed=frozenset(number for number, one in revisions.items() if one.is_failed),
        waits=frozenset(number for number, one in revisions.items() if one.retry_at is not None and one.retry_at > now),
    )


def _stop(stopped: Iterable[_Seen], row: InferenceService, now: datetime) -> None:
    for each in stopped:
        if each.row.stopped_at is None:
            each.row.stopped_at = now
            each.row.save(update_fields=["stopped_at"])
            if each.job is not None:
                jobs.cancel_many([each.job.id], _actor(row), f"service {row.name} needs it no more")


def _start(row: InferenceService, revision: ServiceRevision, now: datetime) -> None:
    """Submit the job of one more replica as the owner of the service, with all that holds for the owner's jobs."""
    port = _port()
    if port is None:
        with override("en"):
            said = _("no port is free: all {count} from {first} to {last} are taken by replicas that have not ended")
        revision.fault = said.format(count=LAST_PORT - FIRST_PORT + 1, first=FIRST_PORT, last=LAST_PORT)
        revision.retry_at = now + timedelta(seconds=NO_PORT_PAUSE_S)
        revision.save(update_fields=["fault", "retry_at"])
        return
    replica = Replica.objects.create(revision=revision, port=port, made_at=now)
    stage = file.stage_of(revision.template)
    env = {
        **(stage["stages"][0].get("env") or {}),
        "PORT": str(replica.port),
        "SERVICE_API_KEY": key_of(replica),
        "SERVICE_NAME": row.name,
        "SERVICE_REVISION": str(revision.number),
    }
    stage["stages"][0]["env"] = env
    # Named, it is watched: the agent reports who listens there (see ``router_link``).
    ports = stage["stages"][0].get("ports") or []
    stage["stages"][0]["ports"] = [*ports, {"name": PORT_NAME, "port": replica.port}]
    if revision.model_job is not None:
        _give_model(stage["stages"][0], revision)
    labels = {**(revision.template.get("labels") or {}), LABEL: row.name}
    spec = {
        **stage,
        "name": f"{row.name}-{revision.number}-{replica.pk}",
        "project": row.project.name,
        "labels": labels,
    }
    try:
        with transaction.atomic(), override("en"):
            if not row.user.is_active:
                raise ValueError(_("user {user} is deactivated").format(user=row.user.get_username()))
            job = jobs.submit(spec, row.user, actor=_actor(row))
    except Exception as error:
        if not isinstance(error, ValueError):
            log.exception("a replica of service %s could not be submitted", row)
        refused = isinstance(error, jobfile.InvalidSpec)
        said = "; ".join(f"{one.pointer}: {one.detail}" for one in error.errors) if refused else ""  # type: ignore[attr-defined]
        replica.fault = (said or (str(error) if isinstance(error, ValueError) else type(error).__name__))[
            :LONGEST_FAULT
        ]
        replica.ended_at = now
        replica.save(update_fields=["fault", "ended_at"])
        _count_failure(revision, replica.fault, now)
        return
    replica.job = job.number
    replica.save(update_fields=["job"])


def _give_model(stage: dict[str, Any], revision: ServiceRevision) -> None:
    """Let a replica have the promoted model as an input, and its script know where."""
    model = revision.model
    one = {
        "job": revision.model_job,
        "from": model["stage"],
        "output": model["output"],
        "sha256": model["digest"],
        "path": MODEL,
    }
    stage["inputs"] = [*(stage.get("inputs") or []), one]
    if run := stage.get("run"):
        stage["run"] = f'export SERVICE_MODEL="$YARD_INPUT_DIR/{MODEL}"\n{run}'


def _port() -> int | None:
    """Return a port that no other replica has; None if all are taken."""
    taken = set(Replica.objects.filter(ended_at=None).values_list("port", flat=True))
    free = [port for port in range(FIRST_PORT, LAST_PORT + 1) if port not in taken]
    return secrets.choice(free) if free else None


def _actor(row: InferenceService) -> str:
    return f"service {row.name}"[:150]


def _tell(row: InferenceService, revisions: dict[int, ServiceRevision], wish: Wish) -> None:
    """Say in one sentence what is wrong with a service, or nothing."""
    revision = revisions[row.revision]
    row.fault = ""
    with override("en"):
        if revision.is_failed:
            goes_on = wish.former is not None and wish.former not in wish.failed
            text = (
                _("revision {number} cannot serve, revision {former} goes on: {fault}")
                if goes_on
                else _("revision {number} cannot serve: {fault}")
            )
            row.fault = text.format(number=revision.number, former=wish.former, fault=revision.fault)[:LONGEST_FAULT]
        elif revision.fault:
            row.fault = revision.fault


def forget_old(now: datetime) -> None:
    """Delete what was counted more than a week ago, and replicas that ended then."""
    week = now - timedelta(days=7)
    ServiceMinute.objects.filter(at__lt=week).delete()
    Replica.objects.filter(ended_at__lt=week).delete()
    promotions.forget_old(now)


def address_of(part: Part) -> str:
    """Return where the router reaches the node of a part."""
    return part.node.address or "127.0.0.1"


def parts_of(replicas: Iterable[Replica], *, since: Phase = Phase.RUNNING) -> dict[int, Part]:
    """Return the running parts of these replicas, by the number of their job; with ``since``, also those that are only
    as far as that."""
    numbers = [one.job for one in replicas if one.job]
    found = Part.objects.select_related("attempt__stage__job", "node").filter(
        attempt__stage__job__number__in=numbers, ended_at=None, rank=0, phase__gte=since, phase__lte=Phase.RUNNING
    )
    return {part.attempt.stage.job.number: part for part in found}
