"""Quotas of projects, and how much of each is in use."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable

import msgspec
from django.db.models import QuerySet, Sum

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs.models import Claim
from controlplane.pools import models as rows
from scheduler.core.resources import charges


class Quota(msgspec.Struct, frozen=True):
    """A project's quota of devices of a kind, and of a model if one is named, in devices (CPU: cores) or, if
    normalised, in A100 equivalents; null is unlimited. Unused quota may be borrowed by projects of the same cohort; an
    empty name is a cohort too, but nothing is reclaimed in it."""

    number: int
    project: str
    kind: str
    model: str
    normalised: bool
    cohort: str
    nominal: float | None
    borrowing_limit: float | None
    lending_limit: float | None
    held: float


def visible(user: User) -> QuerySet[rows.Quota]:
    """The quotas of the projects that this user may see."""
    return rows.Quota.objects.filter(project__in=permissions.visible_projects(user)).select_related("project")


def shown(quotas: Iterable[rows.Quota], user: User) -> list[Quota]:
    """These quotas, and how much of each is in use."""
    quotas = list(quotas)
    held: dict[uuid.UUID, list[tuple[str, str, float, int]]] = defaultdict(list)
    claims = (
        Claim.objects.filter(
            closed_at=None, part__attempt__stage__job__project__in={quota.project_id for quota in quotas}
        )
        .order_by()
        .values_list("part__attempt__stage__job__project", "device__kind", "device__model", "device__features")
        .annotate(milli=Sum("milli"))
    )
    for project, kind, model, features, milli in claims:
        held[project].append((kind, model, charges.of(kind, features), milli))
    return [
        Quota(
            number=quota.pk,
            project=quota.project.name,
            kind=quota.kind,
            model=quota.model,
            normalised=quota.normalised,
            cohort=quota.cohort,
            nominal=quota.nominal,
            borrowing_limit=quota.borrowing_limit,
            lending_limit=quota.lending_limit,
            held=sum(
                milli * (worth if quota.normalised else 1.0) / 1000
                for kind, model, worth, milli in held[quota.project_id]
                if kind == quota.kind and quota.model.lower() in model.lower()
            ),
        )
        for quota in quotas
    ]
