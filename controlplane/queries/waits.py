"""What a job waited for: the time that its stages spent waiting, by reason."""

from __future__ import annotations

from typing import Final

import msgspec
from django.utils import timezone

from controlplane.jobs.models import Job, Stage
from scheduler.core.model.lifecycle import WAITING
from scheduler.core.model.reasons import CATALOGUE, RANK

# What kind of thing a reason is; every reason is of one of them.
OF: Final = {
    "hold": {"Held"},
    "dependency": {
        "DependencyNeverSatisfied", "DependencyPending", "JobDependency", "NamesakePending", "SourcePending",
    },
    "time": {"BeginTime", "BackoffAfterFailure"},
    "request": {
        "InvalidSpec", "SetAside", "BundleUnavailable", "ImageUnavailable", "SecretMissing", "PoolRefused",
        "NoMatchingDevice", "ExceedsClusterMax", "DataResidency", "NodesAvoided", "NodesRestricted", "MountMissing",
    },
    "quota": {"Budget", "ExceedsQuotaMax", "QuotaExhausted"},
    "limit": {"ArrayLimit", "UserLimit", "UserStages", "UserDevices"},
    "service": {
        "PoolStopped", "MaintenanceWindow", "NodesUnavailable", "Reserved", "ReservationAhead", "ReservationOver",
    },
    "capacity": {
        "ProviderBrings", "WaitingForPreemption", "PlannedDeviceBusy", "PlannedLater", "TopologyUnsatisfied",
        "Fragmented", "CapacityInsufficient",
    },
    "order": {"PromiseYielded", "ReservedForHigher", "FairShareDeferred", "PriorityBehind", "PendingEvaluation"},
}  # fmt: skip
_GROUP: Final = {code: group for group, codes in OF.items() for code in codes}
_ACTS: Final = {entry.code: entry.acts for entry in CATALOGUE}


class WaitCause(msgspec.Struct, frozen=True):
    """The time for which ``code`` was the first reason. ``of`` is what kind of thing that is: hold, dependency, time,
    request, quota, limit, service, capacity or order. ``acts`` tells who can change it, ``share`` is of the stage's
    recorded time."""

    code: str
    of: str
    acts: str
    waited_s: float
    share: float


class StageWait(msgspec.Struct, frozen=True):
    """The time that a stage spent waiting, from its submission or the end of an attempt to the next attempt.

    ``unrecorded_s`` is the part of it for which no reason is known: before the engine looked at the stage, or before
    reasons were counted.
    """

    stage: str
    waited_s: float
    unrecorded_s: float
    causes: list[WaitCause]


class Waits(msgspec.Struct, frozen=True):
    """The waits of a job's stages, in their order; longest causes first."""

    results: list[StageWait]


def of_job(job: Job) -> Waits:
    """The waits of this job's stages, up to now where they still wait."""
    return Waits([_of_stage(job, stage) for stage in job.stages.prefetch_related("attempts")])


def _of_stage(job: Job, stage: Stage) -> StageWait:
    now = timezone.now()
    known = {str(code): float(seconds) for code, seconds in stage.waited.items()}
    if stage.waited_at is not None and stage.state in WAITING and stage.reasons:
        code = str(stage.reasons[0]["code"])
        known[code] = known.get(code, 0.0) + max(0.0, (now - stage.waited_at).total_seconds())
    since, waited_s = job.submitted_at, 0.0
    for attempt in stage.attempts.all():
        waited_s += max(0.0, (attempt.created_at - since).total_seconds())
        since = attempt.ended_at or now
    waited_s += max(0.0, ((stage.ended_at or now) - since).total_seconds())
    recorded_s = sum(known.values())
    causes = [
        WaitCause(code, _GROUP.get(code, "order"), _ACTS.get(code, ""), round(seconds, 3), seconds / recorded_s)
        for code, seconds in sorted(known.items(), key=lambda one: (-one[1], RANK.get(one[0], 0)))
        if seconds > 0
    ]
    return StageWait(stage.name, round(waited_s, 3), round(max(0.0, waited_s - recorded_s), 3), causes)
