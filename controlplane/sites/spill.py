"""Lets waiting jobs leave for sites: who may, what the sites foresee for them, and what they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from controlplane.clauses import Told, clause, told
from controlplane.jobs.models import Stage
from controlplane.sites import service
from controlplane.sites.choice import AwayRules, SiteOffer, WaitingJob, candidates, choose
from controlplane.sites.models import Site, SiteJob
from controlplane.sites.peer import LABEL, Peer, PeerFault
from scheduler.core.model.lifecycle import State

ORIGIN: Final = "switchyard-origin"
# A site that was not heard of for so long is not asked for a forecast.
FRESH: Final = timedelta(seconds=60)
MOST_STAGES: Final = 200
# Dry runs are work for a site: so many are asked of all sites in one look, and of one job once in a while.
MOST_ASKED: Final = 10
ASK_AGAIN_S: Final = 30.0
# Reasons for waiting that no time cures here.
NEVER_HERE: Final = frozenset({
    "NoMatchingDevice", "ExceedsClusterMax", "DataResidency", "NodesRestricted", "NodesAvoided", "MountMissing",
})  # fmt: skip
# What is of this cluster alone and means nothing at a site.
_HOME_KEYS: Final = (
    "sites", "data", "on_site_lost", "site", "pool", "project", "priority", "hold", "notify", "reservation", "retry",
    "depends_on", "avoid", "workdir", "bundle",
)  # fmt: skip
_asked_at: dict[str, float] = {}


def look() -> int:
    """Let jobs leave that end earlier at a site; return how many left."""
    now = timezone.now()
    sites = {
        site.name: site
        for site in Site.objects.filter(enabled=True, failures=0, answered_at__gt=now - FRESH).select_related("node")
    }
    if not sites:
        return 0
    rooms = {name: service.room(site) for name, site in sites.items()}
    left, asked = 0, 0
    for stage in _waiting(now):
        if now.timestamp() - _asked_at.get(str(stage.pk), 0.0) < ASK_AGAIN_S:
            continue
        job = waiting_job(stage)
        wanted = candidates(job, [_offer(site, rooms[name]) for name, site in sites.items()], now.timestamp())
        if not wanted or asked + len(wanted) > MOST_ASKED:
            continue
        _note_question(str(stage.pk), now.timestamp())
        asked += len(wanted)
        ends = {one.name: end for one in wanted if (end := _end_at(sites[one.name], stage, now)) is not None}
        chosen = choose(job, wanted, ends, now.timestamp())
        if chosen is not None and service.leave(sites[chosen.name], stage.pk, _why(chosen, job, ends, now)) is not None:
            rooms[chosen.name] -= 1
            left += 1
    return left


def _note_question(stage: str, at: float) -> None:
    if len(_asked_at) > 10_000:
        _asked_at.clear()
    _asked_at[stage] = at


def _waiting(now: datetime) -> list[Stage]:
    """Return the stages that wait and whose job file names sites, most urgent first."""
    rows = Stage.objects.filter(
        Q(begin_at=None) | Q(begin_at__lte=now),
        Q(retry_at=None) | Q(retry_at__lte=now),
        Q(job__source=None) | ~Q(job__bundle=""),  # code from git is a bundle once it was fetched
        state=State.PENDING,
        request__has_key="sites",
        eligible_at__isnull=False,
        evaluated_at__isnull=False,
        job__array=None,
        job__secrets=None,
    )
    return list(
        rows.select_related("job__project", "job__pool").order_by("-job__priority", "job__number")[:MOST_STAGES]
    )


def waiting_job(stage: Stage) -> WaitingJob:
    """Return what the choice of a site needs to know of a waiting stage."""
    refused = SiteJob.objects.filter(part__attempt__stage=stage, fault="SiteRefused").values_list(
        "site__name", flat=True
    )
    assert stage.eligible_at is not None
    ends_at = None
    if stage.expected is not None:
        ends_at = datetime.fromisoformat(stage.expected["high_at"]).timestamp() + (_lasts_s(stage) or 0.0)
    return WaitingJob(
        rules=AwayRules.of(stage.request),
        since=max(filter(None, (stage.eligible_at, stage.state_at))).timestamp(),
        ends_at=ends_at,
        is_impossible=bool(stage.reasons) and stage.reasons[0].get("code") in NEVER_HERE,
        refused_by=frozenset(refused.values_list("site__name", flat=True)),
    )


def _lasts_s(stage: Stage) -> float | None:
    return (stage.lasts or {}).get("p50")


def _offer(site: Site, room: int) -> SiteOffer:
    return SiteOffer(site.name, room, frozenset(site.locations), site.price, site.patience_s, site.gain_s)


def _end_at(site: Site, stage: Stage, now: datetime) -> float | None:
    """Return when a site foresees the end of a stage; None if it foresees none or cannot be asked."""
    try:
        found = Peer(site).forecast(file_for(site, stage, {}), now.timestamp())
    except PeerFault as fault:
        service.note_fault(site, fault, now)
        return None
    if found is None:
        return None
    # What takes time there that nobody can foresee is taken to last as long as here.
    return found.starts_at + (found.lasts_s if found.lasts_s is not None else _lasts_s(stage) or 0.0)


def _why(site: SiteOffer, job: WaitingJob, ends: Mapping[str, float], now: datetime) -> Told:
    there_s = round(max(0.0, ends[site.name] - now.timestamp()))
    if job.is_impossible:
        return told(clause("LeftForImpossible", site=site.name))
    if job.ends_at is None:
        return told(clause("LeftForUnforeseen", site=site.name, there_s=there_s))
    here_s = round(max(0.0, job.ends_at - now.timestamp()))
    return told(clause("LeftFor", site=site.name, there_s=there_s, here_s=here_s))


# -- what a site is sent


def spec_for(row: SiteJob) -> dict[str, Any]:
    """Return the job file with which a site is asked for one of our parts: always the same for the same part."""
    stage = row.part.attempt.stage
    origin = f"{settings.CLUSTER_NAME}/{stage.job.number}"[:200]
    file = file_for(row.site, stage, {LABEL: row.key, ORIGIN: origin})
    return {**file, "bundle": stage.job.bundle} if stage.job.bundle else file


def file_for(site: Site, stage: Stage, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the job file of a stage as a site is to read it, in the pool and project that the site has for us.

    Its code is left out: a dry run needs none, and it is not there yet.
    """
    file = {key: value for key, value in stage.job.spec.items() if key not in _HOME_KEYS}
    if file.get("stages"):
        file["stages"] = [
            {key: value for key, value in one.items() if key not in _HOME_KEYS} for one in file["stages"][:1]
        ]
    file["name"] = stage.job.name
    kept = {name: value for name, value in stage.job.labels.items() if not name.startswith("switchyard-")}
    file["labels"] = {**dict(list(kept.items())[:60]), **labels}
    if site.project:
        file["project"] = site.project
    if site.pools:
        file["pool"] = stage.job.pool.name if stage.job.pool.name in site.pools else site.pools[0]
    return file
