"""Quotas of projects, how much of each is in use, borrowed and lent, and what projects hold in each pool."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec
from django.db.models import QuerySet, Sum

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet.models import Device
from controlplane.jobs.models import Claim
from controlplane.pools import lending
from controlplane.pools import models as rows
from scheduler.core.resources import charges


class QuotaLoan(msgspec.Struct, frozen=True):
    """What a project has borrowed of a quota."""

    project: str
    amount: float


class Quota(msgspec.Struct, frozen=True):
    """A project's quota of devices of a kind, and of a model if one is named, in devices (CPU: cores) or, if
    normalised, in A100 equivalents; null is unlimited. Unused quota may be borrowed by projects of the same cohort; an
    empty name is a cohort too, but nothing is reclaimed in it.

    ``held`` is in use now, ``borrowed`` what of it is above nominal. ``lent`` is what others of the cohort have
    borrowed, divided among those who leave something unused in proportion to that; ``lent_to`` names the projects that
    have borrowed it, as far as you may see them.
    """

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
    borrowed: float
    lent: float
    lent_to: list[QuotaLoan]


class PoolHolding(msgspec.Struct, frozen=True):
    """What a project holds of a kind of device in a pool, of what the pool has; in devices, of CPUs in cores."""

    project: str
    pool: str
    kind: str
    held: float
    capacity: float


def visible(user: User) -> QuerySet[rows.Quota]:
    """The quotas of the projects that this user may see."""
    return rows.Quota.objects.filter(project__in=permissions.visible_projects(user)).select_related("project")


def shown(quotas: Iterable[rows.Quota], user: User) -> list[Quota]:
    """These quotas, and how much of each is in use, borrowed and lent."""
    quotas = list(quotas)
    # Others of their cohorts, whom the user may not see: they borrow and lend too.
    cohorts = rows.Quota.objects.filter(cohort__in={quota.cohort for quota in quotas})
    everyone = {quota.pk: quota for quota in [*cohorts, *quotas]}.values()
    in_use = held(everyone)
    lent = lending.lent(everyone, in_use)
    seen = dict(permissions.visible_projects(user).values_list("pk", "name"))
    names = {quota.pk: seen.get(quota.project_id) for quota in everyone}
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
            held=in_use[quota.pk],
            borrowed=lending.borrowed(quota, in_use),
            lent=round(sum(lent[quota.pk].values()), 3),
            lent_to=[
                QuotaLoan(name, round(amount, 3)) for who, amount in lent[quota.pk].items() if (name := names[who])
            ],
        )
        for quota in quotas
    ]


def held(quotas: Collection[rows.Quota]) -> dict[int, float]:
    """Return how much of each of these quotas is in use, by number."""
    by_project: dict[uuid.UUID, list[tuple[str, str, float, int]]] = defaultdict(list)
    claims = (
        Claim.objects.filter(
            closed_at=None, part__attempt__stage__job__project__in={quota.project_id for quota in quotas}
        )
        .order_by()
        .values_list("part__attempt__stage__job__project", "device__kind", "device__model", "device__features")
        .annotate(milli=Sum("milli"))
    )
    for project, kind, model, features, milli in claims:
        by_project[project].append((kind, model, charges.of(kind, features), milli))
    return {
        quota.pk: sum(
            milli * (worth if quota.normalised else 1.0) / 1000
            for kind, model, worth, milli in by_project[quota.project_id]
            if kind == quota.kind and quota.model.lower() in model.lower()
        )
        for quota in quotas
    }


def promised(quota: rows.Quota) -> tuple[float, float]:
    """How much all quotas of the sort of this one promise together, and how much of that there is, in their units."""
    alike = rows.Quota.objects.filter(kind=quota.kind, model__iexact=quota.model, normalised=quota.normalised)
    total = alike.aggregate(total=Sum("nominal"))["total"] or 0.0
    present = Device.objects.filter(present=True, kind=quota.kind, model__icontains=quota.model)
    there = (
        milli * (charges.of(quota.kind, features) if quota.normalised else 1.0)
        for features, milli in present.values_list("features", "capacity_milli")
    )
    return total, sum(there) / 1000


def held_by_pool(user: User, project: str = "") -> list[PoolHolding]:
    """What the projects that this user may see, or one of them, hold now in each pool."""
    job = "part__attempt__stage__job"
    seen = permissions.visible_projects(user)
    claims = (
        Claim.objects.filter(closed_at=None, **{f"{job}__project__in": seen.filter(name=project) if project else seen})
        .order_by()
        .values_list(f"{job}__project__name", f"{job}__pool__name", "device__kind")
        .annotate(milli=Sum("milli"))
    )
    there = Device.objects.order_by().values_list("node__pools__name", "kind").annotate(milli=Sum("capacity_milli"))
    capacity = {(pool, kind): milli for pool, kind, milli in there}
    return [
        PoolHolding(name, pool, kind, milli / 1000, capacity.get((pool, kind), 0) / 1000)
        for name, pool, kind, milli in sorted(claims)
    ]
