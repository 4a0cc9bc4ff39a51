"""Looks after our jobs at sites: submits them, follows them, copies their logs, and forwards what stops them.

For the record a site is a node (``Site.node``), and this module plays that node's agent: what a site answers becomes
the report of a part, so that states, events, retries and usage follow by the same rules as everywhere. A site that does
not answer is a node that does not report: its jobs are out of contact, and nothing of them starts elsewhere.

One worker at a time looks at a site, under an advisory lock that a lost worker leaves at once. The lock saves work;
that no job runs twice rests on the rows (:mod:`controlplane.sites.service`) and on the key that a site knows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from django.conf import settings
from django.core.files.storage import storages
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from agents.protocol import Exit, Here, Inventory, InventoryRef, Phase, Report
from controlplane import changes
from controlplane.accounts import audit
from controlplane.advisory_lock import LockKey, advisory_lock
from controlplane.clauses import Clause, clause, told
from controlplane.jobs import log_limit, logs, record
from controlplane.jobs.models import Bundle, PartLog
from controlplane.sites import service, spill
from controlplane.sites.models import Site, SiteJob
from controlplane.sites.peer import Peer, PeerFault, PeerJob, PeerRefused, PeerStage, PeerUnknown, one_line
from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.retry import NO_FAULT

if TYPE_CHECKING:
    from agents.protocol import Why

log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
CAPACITY_EVERY: Final = timedelta(seconds=30)
# A cancellation whose effect is not seen is sent again.
CANCEL_AGAIN: Final = timedelta(seconds=30)
# A job that has been there for ten minutes or more is asked for so often.
LONGEST_S: Final = 10.0
# What one site is asked in one look: others have their turn.
MOST_JOBS: Final = 100
LOOK_S: Final = 30.0
PIECES: Final = 16
# These concern one job; after any other fault the site is left alone for a while.
OF_ONE_JOB: Final = ("SiteForgot", "SiteNonsense", "SiteRefused")
ENDED: Final = ("COMPLETED", "FAILED", "CANCELLED")
RUNS: Final = ("RUNNING", "STOPPING", "SUSPENDED")
_INVENTORY: Final = "site"
# What a part may not end with: these say what this cluster decided.
_OURS: Final = {*NO_FAULT, Cause.CANCELLED, Cause.EARLY_STOPPED, Cause.DEPENDENCY, Cause.HELD_IDLE, Cause.DEADLINE}


def look() -> int:
    """Look at all sites that are enabled or have jobs of ours, and let jobs leave; return how many were looked at."""
    rows = Site.objects.filter(Q(enabled=True) | Q(pk__in=SiteJob.objects.filter(over_at=None).values("site")))
    count = 0
    for number in list(rows.order_by("pk").values_list("pk", flat=True)):
        with advisory_lock(LockKey.SITES, number) as is_mine:
            site = Site.objects.select_related("node").filter(pk=number).first() if is_mine else None
            if site is None:
                continue
            try:
                count += look_at(site)
            except Exception:
                # One site keeps no other from being looked at.
                log.exception("site %s could not be looked at", site.name)
    spill.look()
    return count


def look_at(site: Site) -> bool:
    """Ask a site what is due; return False if it is left alone now or cannot be asked."""
    now, began = timezone.now(), time.monotonic()
    give_up_silent(site, now)
    if site.retry_at is not None and site.retry_at > now:
        return False
    try:
        peer = Peer(site)
        peer.cluster()
        if site.capacity_at is None or now - site.capacity_at >= CAPACITY_EVERY:
            service.note_capacity(site, peer.capacity(), now)
        _report(site, [])
        for row in _due(site, now):
            _advance_one(row, peer)
            if time.monotonic() - began > LOOK_S:
                break
    except PeerFault as fault:
        service.note_fault(site, fault, now)
        return False
    service.note_well(site, timezone.now())
    return True


def _due(site: Site, now: datetime) -> list[SiteJob]:
    """Return the open jobs there that are to be looked at, those first that were not looked at for longest.

    What has been there for long is asked for less often, unless it is to stop.
    """
    rows = site.jobs.filter(over_at=None).select_related("part__attempt__stage__job", "site__node")
    rows = rows.order_by(F("looked_at").asc(nulls_first=True), "created_at")
    return [row for row in rows if row.looked_at is None or _is_due(row, row.looked_at, now)][:MOST_JOBS]


def _is_due(row: SiteJob, looked_at: datetime, now: datetime) -> bool:
    age_s = (now - row.created_at).total_seconds()
    is_quiet = row.part.ended_at is None and not row.part.attempt.stop_why
    return (now - looked_at).total_seconds() >= (min(LONGEST_S, age_s / 60) if is_quiet else 0.0)


def _advance_one(row: SiteJob, peer: Peer) -> None:
    """Look after one job; a fault that concerns it alone is written down with it."""
    try:
        advance(row, peer)
    except PeerFault as fault:
        if fault.code not in OF_ONE_JOB:
            raise
        service.note_row_fault(row, fault.code, timezone.now())


def advance(row: SiteJob, peer: Peer) -> None:
    """Do what is next for one of our jobs at a site. Raises PeerFault."""
    now, part = timezone.now(), row.part
    if part.ended_at is not None:
        _clear_away(row, peer, now)
        return
    if row.asked_at is None and part.attempt.stop_why:
        # It was stopped before the site heard of it.
        _end(row, Exit(cause="CANCELLED", stopped=True), now)
        return
    if row.number is None:
        again = service.note_asked(row, now)
        try:
            _give_code(row, peer)
            found = peer.submit(spill.spec_for(row), row.key, again=again)
        except PeerRefused as refusal:
            _end(row, _exit(Cause.NODE_UNFIT, clause("SiteRefused", what=refusal.detail)), now, "SiteRefused")
            return
    else:
        found = peer.job(row.number, row.key)
    service.note_seen(row, found, now)
    assert row.number is not None
    if part.attempt.stop_why and found.state not in ENDED:
        _cancel(row, peer, part.attempt.stop_note or part.attempt.stop_why, now)
    stage = found.stages[0]
    is_whole = _copy_log(row, peer, stage)
    if found.state in ENDED:
        if is_whole:
            _end(row, _exit_of(found, stage), timezone.now())
        return
    where: dict[str, str | int | float] = {"site": row.site.name, "number": found.number}
    if stage.state in RUNS:
        _report(row.site, [_here(row, Phase.RUNNING, **_doing("AwayRuns", where))])
    else:
        code = "AwayWaitsFor" if row.reason else "AwayWaits"
        _report(row.site, [_here(row, Phase.STARTING, **_doing(code, {**where, "reason": row.reason}))])


def _give_code(row: SiteJob, peer: Peer) -> None:
    """Send the code of a job ahead of it."""
    sha256 = row.part.attempt.stage.job.bundle
    bundle = Bundle.objects.filter(pk=sha256).first() if sha256 else None
    if bundle is not None:
        with storages["bundles"].open(Bundle.place(sha256)) as content:
            peer.give_code(sha256, content, bundle.size_bytes)


def _doing(code: str, params: dict[str, str | int | float]) -> dict[str, Any]:
    return {"substate": told(clause(code, **params)).text[:60], "substate_said": [(code, params)]}


def _clear_away(row: SiteJob, peer: Peer, now: datetime) -> None:
    """Have a site cancel a job that was given up here meanwhile."""
    if row.asked_at is None:
        service.over(row, now)
        return
    try:
        found = peer.job(row.number, row.key) if row.number is not None else peer.found(row.key)
    except PeerUnknown:
        found = None
    if found is None or found.state in ENDED:
        service.over(row, now)
        return
    service.note_seen(row, found, now)
    _cancel(row, peer, "given up", now)


def _cancel(row: SiteJob, peer: Peer, why: str, now: datetime) -> None:
    if row.cancelled_at is None or now - row.cancelled_at >= CANCEL_AGAIN:
        assert row.number is not None
        peer.cancel(row.number, f"{settings.CLUSTER_NAME}: {one_line(why)}"[:300])
        service.note_cancelled(row, now)


def give_up_silent(site: Site, now: datetime) -> int:
    """End what may start again elsewhere by its job file, once a site has been silent for long; return how many.

    Only jobs that say ``on_site_lost: restart``: whoever writes that accepts that such a job may run twice for a while.
    """
    heard_at = site.answered_at
    if heard_at is None or not site.failures or now - heard_at < timedelta(seconds=site.lost_after_s):
        return 0
    rows = site.jobs.filter(over_at=None, part__ended_at=None, part__attempt__stage__request__on_site_lost="restart")
    return give_up(site, list(rows.select_related("part")), clause("SiteSilent", site=site.name))


def give_up(site: Site, rows: list[SiteJob], why: Clause) -> int:
    """End these jobs here, which the site does not confirm: queued again, and cancelled there once it answers."""
    here = [_here(row, Phase.ENDED, exit=_exit(Cause.REQUEUED, why)) for row in rows]
    return record.ended_away(site.node_id, here) if here and site.node_id else 0


def confirm_gone(site: Site, actor: str, reason: str) -> int:
    """End what is at a site that does not answer, because a person confirms that it is gone; return how many."""
    rows = list(site.jobs.filter(over_at=None, part__ended_at=None).select_related("part"))
    with transaction.atomic():
        count = give_up(site, rows, clause("SiteGone", site=site.name, actor=actor))
        audit.record("site.give_up", site, after={"jobs_ended": count}, reason=reason)
    return count


# -- what the record is told


def _here(row: SiteJob, phase: Phase, **more: Any) -> Here:
    part = row.part
    return Here(part=str(part.pk), attempt=str(part.attempt_id), epoch=part.epoch, phase=phase, **more)


def _end(row: SiteJob, how: Exit, now: datetime, fault: str = "") -> None:
    """Report the end of a part; the row is closed afterwards, so that a lost worker repeats both."""
    _report(row.site, [_here(row, Phase.ENDED, exit=how)])
    service.over(row, now, fault)


def _exit(cause: Cause, why: Clause) -> Exit:
    says = told(why)
    return Exit(cause=cast("Why", str(cause)), detail=says.text[:900], said=[(why["code"], why["params"])])


def _exit_of(job: PeerJob, stage: PeerStage) -> Exit:
    """Return how a job ended there, in our words."""
    if job.state == "COMPLETED":
        return Exit(code=stage.exit_code or 0)
    if job.state == "CANCELLED":
        return Exit(code=stage.exit_code, cause="CANCELLED", stopped=True)
    known = {str(cause) for cause in set(Cause) - _OURS}
    cause = stage.cause if stage.cause in known else str(Cause.EXIT_CODE)
    return Exit(code=stage.exit_code, cause=cast("Why", cause), detail=one_line(stage.detail)[:500])


def _report(site: Site, here: list[Here]) -> None:
    """Give the record a report of the node that stands for a site."""
    node = site.node or service.stand_in(site)
    inventory = Inventory(hostname=site.name, os="", arch="", cpus=0, memory_bytes=0, isolation="none", runs_as="")
    message = Report(
        proto=1,
        agent="site",
        boot_id=_INVENTORY,
        start_seq=1,
        seq=time.time_ns() // 1_000,
        seen_generation=node.generation,
        inventory=InventoryRef(hash=_INVENTORY, full=None if node.inventory_hash == _INVENTORY else inventory),
        here=here,
    )
    record.report(node.pk, message)


# -- logs


def _copy_log(row: SiteJob, peer: Peer, stage: PeerStage) -> bool:
    """Append what is new of the log there to that of the part here; return whether that was all for now.

    An attempt there follows the one before it in the log here.
    """
    assert row.number is not None
    for _piece in range(PIECES):
        if not stage.attempts or PartLog.objects.filter(part=row.part, gone_at__isnull=False).exists():
            return True
        attempt = row.log_attempt or 1
        at = {name: int(row.log_at.get(name, 0)) for name in logs.STREAMS}
        news = {name: peer.log(row.number, stage.name, attempt, name, at[name]) for name in logs.STREAMS}
        if any(news.values()):
            if not _append(row, attempt, at, news):
                return True
        elif attempt >= stage.attempts:
            return True
        else:
            service.note_log(row, attempt + 1, {})
    return False


def _append(row: SiteJob, attempt: int, at: Mapping[str, int], news: Mapping[str, bytes]) -> bool:
    """Store bytes of both streams, and how far the copy is, in one transaction; return False once the log is full."""
    is_full = False
    with transaction.atomic():
        logs.lock(row.part.pk)
        ends = {stream: end for (_part, stream), end in logs.ends([row.part.pk]).items()}
        if log_limit.is_cut(sum(ends.values())):
            return False
        pieces = []
        for stream, content in news.items():
            room = settings.LOG_MAX_BYTES - sum(ends.values())
            if len(content) > room:
                content, is_full = content[: max(0, room)] + log_limit.cut_here(), True
            pieces.append(logs.Piece(row.part.pk, stream, ends.get(stream, 0), content))
            ends[stream] = ends.get(stream, 0) + len(content)
            if is_full:
                break
        logs.append(pieces)
        service.note_log(row, attempt, {name: at[name] + len(news[name]) for name in news})
        number = row.part.attempt.stage.job.number
        transaction.on_commit(lambda: changes.announce(f"logs:{number}"))
    if is_full:
        log_limit.note([row.part.pk])
    return not is_full
