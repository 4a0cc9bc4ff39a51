"""The calendar: when nodes are out of service or reserved, also again and again, and its form for the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, Final

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane import changes, cron
from controlplane.fleet.models import CalendarEntry
from controlplane.fleet.service import NodeRefused
from scheduler.core.model import types

LONGEST: Final = timedelta(days=366)
LONGEST_RECURRING: Final = timedelta(days=1_830)
# An entry that recurs has at most so many times; the scheduler sees those of the next 40 days.
MOST_TIMES: Final = 1_000
AHEAD: Final = timedelta(days=40)
# What the audit log has of an entry.
TOLD: Final = ("starts_at", "ends_at", "cron", "time_zone", "lasts_s")
Span = tuple[datetime, datetime]
# Id, node and pool of a window or nodes of a reservation, start, end, cron line, zone, length, reason, and the name and
# project of a reservation; times in seconds since the epoch.
Row = tuple[str, str | None, str | None, list[str], float, float, str, str, int | None, str, str, str]


UNKNOWN: Final = {
    "project": gettext_noop("there is no project {name}"),
    "users": gettext_noop("there is no user {name}"),
    **dict.fromkeys(("node", "nodes"), gettext_noop("there is no node {name}")),
    "pool": gettext_noop("there is no pool {name}"),
}
MOST_NAMED: Final = 1_000


class EntryRefused(NodeRefused):
    """Raised for an entry that cannot be; ``field`` is at fault, the text says what would be accepted."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def rows_named(model: Any, field: str, names: Sequence[str]) -> list[Any]:
    """Return the rows of these names, each once. Raises EntryRefused with ``field`` for the first that is not there,
    or is beyond :data:`MOST_NAMED`."""
    key = getattr(model, "USERNAME_FIELD", "name")
    found = {getattr(row, key): row for row in model.objects.filter(**{f"{key}__in": names[:MOST_NAMED]})}
    for name in names:
        if name not in found:
            raise EntryRefused(field, _(UNKNOWN[field]).format(name=name[:63]))
    return [found[name] for name in dict.fromkeys(names)]


def not_ended(now: datetime) -> Q:
    """Return the condition of entries that have neither ended nor been cancelled."""
    return Q(cancelled_at=None, ends_at__gt=now)


def times(entry: CalendarEntry, since: datetime, until: datetime) -> Iterator[Span]:
    """Yield when the entry holds, as far as that overlaps this time, the earliest first."""
    spans = _spans(entry.starts_at, entry.ends_at, entry.cron, entry.time_zone, entry.lasts_s, since)
    for start, end in spans:
        if start >= until:
            return
        if end > since:
            yield start, end


def next_time(entry: CalendarEntry, now: datetime) -> Span:
    """Return when the entry holds now or next; its last time, or the whole of it, where it is over."""
    return next(times(entry, now, entry.ends_at), (entry.starts_at, entry.ends_at))


def _spans(
    starts_at: datetime, ends_at: datetime, line: str, zone: str, lasts_s: int | None, since: datetime
) -> Iterator[Span]:
    if not line or lasts_s is None:
        yield starts_at, ends_at
        return
    lasts = timedelta(seconds=lasts_s)
    for at in cron.times(line, zone, max(starts_at, since - lasts) - timedelta(seconds=1)):
        if at >= ends_at:
            return
        yield at, min(at + lasts, ends_at)


def fault(entry: CalendarEntry) -> tuple[str, str] | None:
    """Return the invalid field of an entry with a sentence about it; None if the entry is valid."""
    if entry.ends_at <= entry.starts_at:
        return "ends_at", _("it must end after it starts")
    if entry.ends_at <= timezone.now():
        return "ends_at", _("it lies in the past; give an end that is still to come")
    if not entry.cron and entry.ends_at - entry.starts_at > LONGEST:
        return "ends_at", _("it lasts longer than 366 days; drain what is away for good")
    if entry.ends_at - entry.starts_at > LONGEST_RECURRING:
        most = LONGEST_RECURRING.days
        return "ends_at", _("it recurs for longer than {days} days; let it end earlier").format(days=most)
    if not entry.reason.strip():
        return "reason", _("it needs a reason: others will ask")
    if bool(entry.cron) != (entry.lasts_s is not None):
        return "lasts_s", _("an entry that recurs needs both: a cron line, and how long each time lasts")
    return _recurrence_fault(entry) if entry.cron else None


def _recurrence_fault(entry: CalendarEntry) -> tuple[str, str] | None:
    try:
        cron.check(entry.cron, entry.time_zone)
    except cron.CronFault as found:
        return ("time_zone" if entry.time_zone not in cron.zones() else "cron"), str(found)
    found_times = list(islice(times(entry, entry.starts_at, entry.ends_at), MOST_TIMES + 1))
    if not found_times:
        return "cron", _("no time of it lies between its start and its end")
    if len(found_times) > MOST_TIMES:
        return "cron", _("it has more than {most} times; let it end earlier").format(most=MOST_TIMES)
    if not entry.lasts_s or any(end > begin for (_start, end), (begin, _end) in pairwise(found_times)):
        return "lasts_s", _("each time must end before the next begins")
    return None


def overlap(one: CalendarEntry, other: CalendarEntry) -> datetime | None:
    """Return the first moment at which both entries hold; None if there is none."""
    since, until = max(one.starts_at, other.starts_at), min(one.ends_at, other.ends_at)
    if since >= until:
        return None
    mine, theirs = iter(times(one, since, until)), iter(times(other, since, until))
    a, b = next(mine, None), next(theirs, None)
    while a and b:
        if a[0] < b[1] and b[0] < a[1]:
            return max(a[0], b[0])
        if a[1] <= b[1]:
            a = next(mine, None)
        else:
            b = next(theirs, None)
    return None


def announce() -> None:
    """Wake the scheduler and notify browsers once the transaction has committed."""
    transaction.on_commit(changes.wake)
    transaction.on_commit(lambda: changes.announce("fleet"))


def as_seen(rows: Iterable[Row], nodes: Sequence[types.Node], now: float) -> tuple[types.CalendarEntry, ...]:
    """Return the entries for the scheduler, each time of them by itself."""
    seen = []
    for entry, node_id, pool, kept, starts_at, ends_at, line, zone, lasts_s, reason, name, project in rows:
        about = tuple(sorted(kept)) or tuple(
            sorted(node.id for node in nodes if node.id == node_id or (pool and pool in node.pools))
        )
        if not line or lasts_s is None:
            seen.append(types.CalendarEntry(entry, about, starts_at, ends_at, reason, name, project))
            continue
        for start, end in _ahead(starts_at, ends_at, line, zone, lasts_s, int(now // 3600)):
            if end > now:
                at = f"{entry}@{int(start)}"
                seen.append(types.CalendarEntry(at, about, start, end, reason, name, project))
    return tuple(seen)


@lru_cache(maxsize=512)
def _ahead(
    starts_at: float, ends_at: float, line: str, zone: str, lasts_s: int, hour: int
) -> tuple[tuple[float, float], ...]:
    """Return the times that overlap the days after this hour since the epoch."""
    since = datetime.fromtimestamp(hour * 3600, UTC)
    first, last = (datetime.fromtimestamp(at, UTC) for at in (starts_at, ends_at))
    found = []
    for start, end in _spans(first, last, line, zone, lasts_s, since):
        if start >= since + AHEAD:
            break
        found.append((start.timestamp(), end.timestamp()))
    return tuple(found)
