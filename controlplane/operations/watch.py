"""Periodic duties of the fleet: failure detection, requeueing lost attempts, and cleanup.

Each duty is claimed by a conditional update, so duplicate or missing beats do no harm.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone

from agents.protocol import Timers
from controlplane import changes, storage
from controlplane.accounts import guard
from controlplane.accounts import service as access
from controlplane.clauses import clause, told
from controlplane.fleet import alarms, fuse, node_links, service
from controlplane.fleet.models import Heartbeat, JoinToken, Node
from controlplane.jobs import drains, logs, record, saves_ahead, sealed, sessions, traces
from controlplane.observability import tallies
from controlplane.operations import invariants
from controlplane.scheduling import change_feed, recorder
from controlplane.simulations import service as simulations

log = logging.getLogger(__name__)

AMNESTY_S = 60.0
WATCH_S = 1.5
# The database's clock and this process's do not drift further apart than this between two checks.
JUMP_S = 2.0
_looked: dict[str, float] = {}
_watched_at = float("-inf")


def claim(name: str, every_s: float) -> bool:
    """Claim a duty; return False if anybody did it within ``every_s``.

    A time in the future was stored before the clock was set back, and counts for nothing.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO fleet_heartbeat AS h (name, at) VALUES (%s, now())
               ON CONFLICT (name) DO UPDATE SET at = now() WHERE h.at < now() - make_interval(secs => %s)
                   OR h.at > now() + make_interval(secs => %s)
               RETURNING at""",
            [name, every_s, every_s],
        )
        return cursor.fetchone() is not None


def _since(name: str) -> float:
    row = Heartbeat.objects.filter(name=name).first()
    return (service.now_in_database() - row.at).total_seconds() if row else float("inf")


def _has_jumped() -> bool:
    """Whether the database's clock was set since this process last checked."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        ahead_s = cursor.fetchone()[0] - time.monotonic()
    before_s = _looked.get("ahead_s", ahead_s)
    _looked["ahead_s"] = ahead_s
    return abs(ahead_s - before_s) > JUMP_S


def last_watch_at() -> float:
    """When this process last looked for silent nodes, by the monotonic clock."""
    return _watched_at


def watch() -> None:
    """Mark silent nodes, requeue certainly dead attempts, stop what drains no longer wait for, and have saved what is
    going to be stopped.

    Nobody is marked shortly after an outage of the control plane.
    """
    global _watched_at
    _watched_at = time.monotonic()
    timers = Timers(**settings.LINK_TIMERS)
    asleep_s = _since("watch")
    if not claim("watch", WATCH_S):
        return
    nodes = max(1, Node.objects.count())
    period = max(timers.report_s, nodes / 400)
    suspect_s, lost_s = max(timers.suspect_s, 3 * period), max(timers.lost_s, 9 * period)
    if _has_jumped() or asleep_s < -JUMP_S or asleep_s > max(10.0, suspect_s):
        # The control plane was down, or its clock was set: silence is no evidence of failure yet.
        Node.objects.filter(last_report_at__gt=Now()).update(last_report_at=Now())
        Heartbeat.objects.update_or_create(name="amnesty", defaults={"at": service.now_in_database()})
    amnesty = _since("amnesty") < max(AMNESTY_S if not settings.LINK_TIMERS else lost_s, lost_s)
    changed, lost = service.silent_nodes(suspect_s, lost_s, amnesty=amnesty)
    if lost:
        record.mark_contact([node.id for node in lost], lost=True)
        log.warning("out of contact: %s", ", ".join(node.name for node in lost))
    since = Heartbeat.objects.filter(name="amnesty").values_list("at", flat=True).first()
    given_up = 0 if fuse.look() else record.give_up_lost(timers.lease_s, not_before=since)
    drains.stop_due()
    saves_ahead.ask_due()
    traces.expire()
    if changed or given_up:
        changes.announce("fleet", "jobs")
        changes.wake()


def housekeeping() -> None:
    """Create tomorrow's partitions, drop the oldest, and delete what has expired."""
    if not claim("housekeeping", 50):
        return
    now = timezone.now()
    access.forget_old()
    guard.forget_old()
    alarms.forget_old()
    recorder.forget_old()
    change_feed.forget_old()
    tallies.fold()
    node_links.assign(now)
    sessions.sweep()
    sealed.forget_ended()
    check_disk()
    logs.sweep(int(time.time()) // 60)
    JoinToken.objects.filter(expires_at__lt=now - timedelta(days=1)).delete()
    for table in ("fleet_device_sample", "fleet_part_sample"):
        _partitions(table)
    # Last, so that an object store that does not answer delays nothing else.
    simulations.sweep(int(time.time()) // 60)


def check_disk() -> None:
    """Raise an alarm while the disk has too little room for uploads and logs."""
    free = storage.free_bytes()
    floor = settings.MIN_FREE_BYTES
    says = told(clause("DiskLow", free_gib=round(free / 2**30, 1), floor_gib=round(floor / 2**30, 1)))
    alarms.raised(alarms.DISK, {"control plane": says} if free < floor else {})


def check() -> None:
    """Check the invariants and raise an alarm for those violated."""
    if not claim("invariants", 50):
        return
    found = invariants.check()
    for says in found.unchecked:
        log.warning("an invariant was not checked: %s", says)
    alarms.raised(alarms.INVARIANT, found.broken)


def _partitions(table: str) -> None:
    """Create the partitions of today and tomorrow if the default partition is empty for that day; drop old ones."""
    today = timezone.now().date()
    with connection.cursor() as cursor:
        for day in (today, today + timedelta(days=1)):
            name, end = f"{table}_{day:%Y%m%d}", day + timedelta(days=1)
            cursor.execute(
                f"SELECT to_regclass(%s), EXISTS (SELECT 1 FROM {table}_default WHERE at >= %s AND at < %s)",
                [name, day, end],
            )
            exists, occupied = cursor.fetchone()
            if exists is None and not occupied:
                cursor.execute(f"CREATE TABLE {name} PARTITION OF {table} FOR VALUES FROM ('{day}') TO ('{end}')")
        oldest = today - timedelta(days=settings.RETENTION_DAYS["samples"])
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ %s", [f"^{table}_[0-9]{{8}}$"])
        for (name,) in cursor.fetchall():
            if name[-8:] < f"{oldest:%Y%m%d}":
                cursor.execute(f"DROP TABLE {name}")
        cursor.execute(f"DELETE FROM {table}_default WHERE at < %s", [oldest])
