"""Sites: what is known of them, and the jobs of ours there that a user may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec
from django.db.models import QuerySet

from controlplane.accounts.models import User
from controlplane.queries import jobs
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.reading import Representation, seen
from controlplane.sites import models as rows

MOST_JOBS: Final = 500


class SiteDevices(msgspec.Struct, frozen=True):
    """Devices of one model at a site."""

    kind: str
    model: str
    count: int
    free: int


class Site(msgspec.Struct, frozen=True):
    """Another cluster to which jobs may leave. ``state`` is well, ill, unknown (never asked) or disabled.

    ``devices`` and ``waiting``, the number of waiting jobs that it lets us see, are what it told at ``capacity_at``.
    ``our_jobs`` counts our jobs there by their state there, ``UNKNOWN`` those of which it has told nothing yet.
    ``condition`` is why it cannot be asked, since ``condition_at``; it is asked again at ``retry_at``. ``has_token``
    tells that a token of it is set, which is never shown.
    """

    name: str
    url: str
    state: str
    enabled: bool
    fingerprint: str
    project: str
    pools: list[str]
    locations: list[str]
    price: float
    patience_s: int
    gain_s: int
    most_jobs: int
    lost_after_s: int
    has_token: bool
    devices: list[SiteDevices]
    waiting: int | None
    capacity_at: datetime | None
    our_jobs: dict[str, int]
    condition: str
    condition_said: list[Clause]
    condition_at: datetime | None
    failures: int
    retry_at: datetime | None
    answered_at: datetime | None


class SiteJob(msgspec.Struct, frozen=True):
    """A job of ours that is, or was, at a site. ``number`` and ``state`` are those there, null and empty until it
    answered; ``reason`` is why it waits there. ``fault`` is a code of what is wrong with it alone. It is
    ``is_unknown`` while the site does not answer, or does not know it."""

    job: int
    stage: str
    name: str
    site: str
    number: int | None
    state: str
    reason: str
    fault: str
    is_unknown: bool
    created_at: datetime
    asked_at: datetime | None
    looked_at: datetime | None
    over_at: datetime | None


def shown(sites: Iterable[rows.Site], user: User) -> list[Site]:
    """These sites, and what is known of them; every user sees them."""
    sites = list(sites)
    counts: dict[int, Counter[str]] = {site.pk: Counter() for site in sites}
    live = rows.SiteJob.objects.filter(site__in=sites, over_at=None).values_list("site", "state")
    for number, state in live:
        counts[number][state or "UNKNOWN"] += 1
    with_token = set(rows.SiteToken.objects.filter(site__in=sites).values_list("site", flat=True))
    return [
        Site(
            name=site.name,
            url=site.url,
            state=_state(site),
            enabled=site.enabled,
            fingerprint=site.fingerprint,
            project=site.project,
            pools=site.pools,
            locations=site.locations,
            price=site.price,
            patience_s=site.patience_s,
            gain_s=site.gain_s,
            most_jobs=site.most_jobs,
            lost_after_s=site.lost_after_s,
            has_token=site.pk in with_token,
            devices=msgspec.convert(site.capacity.get("devices", []), list[SiteDevices]),
            waiting=site.capacity.get("waiting"),
            capacity_at=site.capacity_at,
            our_jobs=dict(sorted(counts[site.pk].items())),
            condition=site.condition,
            condition_said=clauses(site.said),
            condition_at=site.condition_at,
            failures=site.failures,
            retry_at=site.retry_at,
            answered_at=site.answered_at,
        )
        for site in sites
    ]


def _state(site: rows.Site) -> str:
    if not site.enabled:
        return "disabled"
    if site.failures:
        return "ill"
    return "well" if site.answered_at is not None else "unknown"


def jobs_of(site: rows.Site, user: User) -> QuerySet[rows.SiteJob]:
    """Our jobs at a site that this user may see, newest first."""
    mine = jobs.visible(user)
    found = site.jobs.filter(part__attempt__stage__job__in=mine)
    return found.select_related("site", "part__attempt__stage__job").order_by("-created_at", "key")


def jobs_shown(found: Iterable[rows.SiteJob], user: User) -> list[SiteJob]:
    """These jobs."""
    return [
        SiteJob(
            job=row.part.attempt.stage.job.number,
            stage=row.part.attempt.stage.name,
            name=row.part.attempt.stage.job.name,
            site=row.site.name,
            number=row.number,
            state=row.state,
            reason=row.reason,
            fault=row.fault,
            is_unknown=row.over_at is None and bool(row.site.failures or row.fault == "SiteForgot"),
            created_at=row.created_at,
            asked_at=row.asked_at,
            looked_at=row.looked_at,
            over_at=row.over_at,
        )
        for row in found
    ]


def whole(user: User) -> Representation:
    """All sites, as the API lists them."""
    return seen(user, "/sites", {"results": shown(rows.Site.objects.all(), user)})
