"""Decides whether a waiting job leaves for a site, and for which: a function of what is known of it, sites and time.

Laws (tests/sites/test_choice.py): a job leaves only for a site that its file allows and only from where its data may
leave; never where it ends no earlier there, unless it cannot run here at all; never before it has waited for as long as
the site's operator says; and never beyond the number of jobs that a site takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

ANY = "any"


@dataclass(frozen=True, slots=True)
class AwayRules:
    """What a job file says of other sites: ``names`` are the sites that it may leave for, None for any, and ``place``
    where it has to run, empty for anywhere. ``data_at`` is where its data are."""

    names: frozenset[str] | None = frozenset()
    place: str = ""
    data_at: str = ""

    @classmethod
    def of(cls, request: Mapping[str, object]) -> AwayRules:
        """Read them from the request of a stage; a job whose file says nothing leaves for no site."""
        asked = request.get("sites", ())
        names = None if asked == ANY else frozenset(str(one) for one in asked if one)  # type: ignore[attr-defined]
        return cls(names, str(request.get("site", "")), str(request.get("data_at", "")))


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits here since ``since``; it ends here at ``ends_at``, None if no start is foreseen, and cannot run
    here at all if ``is_impossible``. All times are in seconds since the epoch."""

    rules: AwayRules
    since: float
    ends_at: float | None = None
    is_impossible: bool = False
    refused_by: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class SiteOffer:
    """What a site offers: so many more jobs as ``room``; data of ``places`` are there."""

    name: str
    room: int
    places: frozenset[str] = frozenset()
    price: float = 0.0
    patience_s: float = 60.0
    gain_s: float = 60.0


def may_leave_for(job: WaitingJob, site: SiteOffer) -> bool:
    """Whether rules and data let a job leave for this site, whenever it would end there."""
    places = {site.name, *site.places}
    is_named = job.rules.names is None or site.name in job.rules.names
    return is_named and (not job.rules.place or job.rules.place in places) and site.name not in job.refused_by


def candidates(job: WaitingJob, sites: Collection[SiteOffer], now: float) -> list[SiteOffer]:
    """Return the sites whose forecast is to be asked now, by name."""
    return [
        site
        for site in sorted(sites, key=lambda one: one.name)
        if site.room > 0 and may_leave_for(job, site) and (job.is_impossible or now - job.since >= site.patience_s)
    ]


def choose(job: WaitingJob, sites: Collection[SiteOffer], ends_at: Mapping[str, float], now: float) -> SiteOffer | None:
    """Return the site for which the job leaves now; None if it stays. ``ends_at`` are the predicted ends by site.

    Of sites where it ends equally early within their ``gain_s``, the one that has its data is taken, then the cheaper.
    """
    found = [
        site
        for site in candidates(job, sites, now)
        if site.name in ends_at
        and (job.is_impossible or job.ends_at is None or ends_at[site.name] + site.gain_s <= job.ends_at)
    ]
    if not found:
        return None
    first = min(ends_at[site.name] for site in found)
    close = [site for site in found if ends_at[site.name] <= first + site.gain_s]
    return min(
        close,
        key=lambda site: (
            job.rules.data_at not in {site.name, *site.places},
            site.price,
            ends_at[site.name],
            site.name,
        ),
    )
