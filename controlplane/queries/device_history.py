"""What a device did and who held it: its measurements over time, and its claims, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import QuerySet

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet import models as rows
from controlplane.jobs.models import Attempt, Claim
from controlplane.queries import metrics
from controlplane.queries.cursor import Page


class DeviceMetrics(msgspec.Struct, frozen=True):
    """Means of a device over each step; null where nothing was measured. Lists have one value per time in ``at``."""

    from_at: datetime
    to_at: datetime
    step_s: float
    at: list[datetime]
    utilisation: list[float | None]
    memory_used_bytes: list[float | None]
    power_w: list[float | None]
    temperature_c: list[float | None]


class PastClaim(msgspec.Struct, frozen=True):
    """A share of a device that was held, or still is if ``closed_at`` is null. ``job`` and the names are null if you
    may not see the job."""

    job: int | None
    name: str | None
    stage: str | None
    attempt: int | None
    project: str | None
    user: str | None
    milli: int
    memory_bytes: int
    partition: str | None
    opened_at: datetime
    closed_at: datetime | None


class PastClaimPage(Page[PastClaim], frozen=True):
    """One page of a device's claims, newest first."""


def measured(device: rows.Device, since_s: float) -> DeviceMetrics:
    """The measurements of this device over the span that ends now."""
    span = metrics.span(since_s)
    found = metrics.of_device(device.id, span)
    return DeviceMetrics(span.begin, span.end, span.step_s, span.at, *found)


def claims_of(device: rows.Device) -> QuerySet[Claim]:
    """All claims on this device."""
    job = "part__attempt__stage__job"
    return Claim.objects.filter(device=device).select_related(f"{job}__project", f"{job}__user")


def shown(claims: Iterable[Claim], user: User) -> list[PastClaim]:
    """These claims, in the same order; those of jobs that this user may not see have no names."""
    claims = list(claims)
    visible = permissions.visible_jobs(user, "part__attempt__stage__job__")
    seen = set(Claim.objects.filter(visible, id__in=[claim.pk for claim in claims]).values_list("id", flat=True))
    return [_shown(claim, claim.pk in seen) for claim in claims]


def names_of(attempt: Attempt, is_seen: bool) -> dict[str, Any]:
    """Whose attempt held something; all null if the reader may not see its job."""
    if not is_seen:
        return dict.fromkeys(("job", "name", "stage", "attempt", "project", "user"))
    stage = attempt.stage
    return {
        "job": stage.job.number,
        "name": stage.job.name,
        "stage": stage.name,
        "attempt": attempt.number,
        "project": stage.job.project.name,
        "user": stage.job.user.get_username(),
    }


def _shown(claim: Claim, is_seen: bool) -> PastClaim:
    return PastClaim(
        **names_of(claim.part.attempt, is_seen),
        milli=claim.milli,
        memory_bytes=claim.memory_bytes,
        partition=claim.partition or None,
        opened_at=claim.opened_at,
        closed_at=claim.closed_at,
    )
