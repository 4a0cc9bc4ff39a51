"""The only writer of what is known of sites and of our jobs there. Each function is short; none asks a site."""

from __future__ import annotations

import logging
import secrets
import uuid
from datetime import datetime, timedelta
from typing import Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane import changes
from controlplane.accounts import audit
from controlplane.clauses import Told, clause, told
from controlplane.fleet import alarms
from controlplane.fleet import service as fleet
from controlplane.fleet.models import SITE_NODE, Node
from controlplane.jobs import service as jobs
from controlplane.jobs.models import Part, Stage
from controlplane.sites.models import Site, SiteJob, SiteToken
from controlplane.sites.peer import PeerFault, PeerJob, one_line
from scheduler.core.model.lifecycle import State

log = logging.getLogger(__name__)

# A site is asked again after 5, 10, 20 ... seconds, at most five minutes.
FIRST_RETRY_S: Final = 5.0
LONGEST_RETRY_S: Final = 300.0
# From so many failures in a row operators see an alarm.
ALARMING: Final = 3


class SiteNameTaken(ValueError):
    """A node has the name of the node that would stand for the site."""


def stand_in(site: Site) -> Node:
    """Return the node that stands for a site; it is made where it is missing. Raises SiteNameTaken."""
    name = f"{SITE_NODE}{site.name}"
    with transaction.atomic():
        node = Node.objects.select_for_update().filter(name=name).first()
        if node is not None and not node.is_site:
            raise SiteNameTaken(name)
        if node is None:
            node = fleet.stand_in(name)
        Site.objects.filter(pk=site.pk).update(node=node)
    site.node = node
    return node


def forget_stand_in(site: Site) -> None:
    """Take the node of a deleted site out of the list; it stays while what ran there is kept."""
    if site.node is not None:
        fleet.retire_stand_in(site.node)


def set_token(site: Site, token: str, actor: str) -> None:
    """Keep the token that a site gave us, encrypted. Raises ``KeyUnavailable``."""
    row = SiteToken(site=site, set_at=timezone.now(), set_by=actor)
    row.put(token.encode())
    with transaction.atomic():
        SiteToken.objects.filter(site=site).delete()
        row.save(force_insert=True)
        audit.record("site.token", site)
        Site.objects.filter(pk=site.pk).update(retry_at=None)


def leave(site: Site, stage_id: uuid.UUID, why: Told) -> SiteJob | None:
    """Give a waiting stage to a site: from now on it is the site's alone. Return None if it waits no more.

    The attempt, its part on the site's node and the row that says what is to be asked are one transaction.
    """
    at = timezone.now()
    node = site.node or stand_in(site)
    with transaction.atomic():
        row = Stage.objects.filter(pk=stage_id).values_list("job_id", flat=True).first()
        locked = jobs.lock([row]) if row else {}
        if not locked:
            return None
        jobs.touch_nodes([node.pk])
        site = Site.objects.select_for_update(of=("self",)).get(pk=site.pk)
        stage = Stage.objects.get(pk=stage_id)
        if State(stage.state) is not State.PENDING or not site.enabled or room(site) < 1:
            return None
        notes = jobs.place(locked, [jobs.Placing(stage, 0, ((node.pk, ()),), why, {})], at)
        part = Part.objects.get(attempt__stage=stage, attempt__ended_at=None)
        made = SiteJob.objects.create(
            part=part,
            site=site,
            key=f"{part.pk.hex}-{part.epoch}-{secrets.token_hex(6)}",
            created_at=at,
        )
        jobs.settle(locked.values(), notes, at, [stage])
        number = locked[stage.job_id].number
        transaction.on_commit(lambda: changes.announce("jobs", f"job:{number}", "fleet"))
        transaction.on_commit(changes.wake)
    return made


def room(site: Site) -> int:
    """Return how many more of our jobs a site may have."""
    return site.most_jobs - site.jobs.filter(over_at=None).count()


def note_asked(row: SiteJob, now: datetime) -> bool:
    """Write down that a site is about to be asked for this job; return whether it may have been asked before."""
    before = not SiteJob.objects.filter(pk=row.pk, asked_at=None).update(asked_at=now)
    row.asked_at = row.asked_at or now
    return before


def note_seen(row: SiteJob, found: PeerJob, now: datetime) -> None:
    """Take over what a site says of a job; its number there never changes."""
    if row.number is not None and row.number != found.number:
        raise PeerFault("SiteNonsense")
    reason = one_line(found.reason.text)[:300] if found.reason else ""
    told_ = {"number": found.number, "state": found.state[:10], "reason": reason, "fault": ""}
    if any(getattr(row, name) != value for name, value in told_.items()):
        try:
            SiteJob.objects.filter(pk=row.pk).update(**told_, looked_at=now)
        except IntegrityError:
            raise PeerFault("SiteNonsense") from None
        number = row.part.attempt.stage.job.number
        changes.announce("jobs", f"job:{number}", "fleet")
    else:
        SiteJob.objects.filter(pk=row.pk).update(looked_at=now)
    for name, value in told_.items():
        setattr(row, name, value)
    row.looked_at = now


def note_row_fault(row: SiteJob, code: str, now: datetime) -> None:
    """Write down why nothing is known of one job at a site that answers otherwise."""
    SiteJob.objects.filter(pk=row.pk).update(fault=code, looked_at=now)
    if row.fault != code:
        changes.announce("jobs", f"job:{row.part.attempt.stage.job.number}", "fleet")
    row.fault = code


def note_cancelled(row: SiteJob, now: datetime) -> None:
    """Write down that a site was asked to cancel a job."""
    SiteJob.objects.filter(pk=row.pk).update(cancelled_at=now)


def note_log(row: SiteJob, attempt: int, at: dict[str, int]) -> None:
    """Write down how far the log of an attempt there was copied."""
    row.log_attempt, row.log_at = attempt, at
    SiteJob.objects.filter(pk=row.pk).update(log_attempt=attempt, log_at=at)


def over(row: SiteJob, now: datetime, fault: str = "") -> None:
    """Write down that nothing more is to be done for a job at its site."""
    SiteJob.objects.filter(pk=row.pk).update(over_at=now, **({"fault": fault} if fault else {}))
    row.over_at = now
    changes.announce("fleet")


def note_capacity(site: Site, capacity: dict[str, object], now: datetime) -> None:
    """Take over what a site tells of itself."""
    Site.objects.filter(pk=site.pk).update(capacity=capacity, capacity_at=now)
    changes.announce("fleet")


def note_fault(site: Site, fault: PeerFault, now: datetime) -> None:
    """Write down why a site cannot be asked; it is asked again later, each time later than before."""
    failures = site.failures + 1
    retry_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures - 1, 10))
    says = told(clause(fault.code, what=alarms.sentence(one_line(fault.detail), 200)))
    log.warning("site %s: %s", site.name, says.text)
    Site.objects.filter(pk=site.pk).update(
        condition=says.text[:400],
        said=says.said,
        condition_at=now if site.condition != says.text[:400] else site.condition_at,
        failures=failures,
        retry_at=now + timedelta(seconds=retry_s),
    )
    if failures >= ALARMING:
        alarms.raised(alarms.SITE, {site.name: says}, about=site.name)
    changes.announce("fleet")


def note_well(site: Site, now: datetime) -> None:
    """Write down that a site answered all that it was asked."""
    Site.objects.filter(pk=site.pk).update(
        condition="", said=[], condition_at=None, failures=0, retry_at=None, answered_at=now
    )
    if site.failures:
        alarms.raised(alarms.SITE, {}, about=site.name)
        changes.announce("fleet")
