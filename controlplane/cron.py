"""Times of a cron line in a time zone. Days on which the clock is changed follow the rules of Debian's cron."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from django.utils.translation import gettext as _

LONGEST: Final = 100


class CronFault(ValueError):
    """Raised where a cron line or a time zone cannot be used; the text is for people."""


@lru_cache(maxsize=1)
def zones() -> frozenset[str]:
    """Return the names of the time zones that there are."""
    return frozenset(available_timezones())


def check(line: str, zone: str) -> None:
    """Raise :class:`CronFault` unless the line has times to come in this zone."""
    if zone not in zones():
        raise CronFault(_("there is no time zone {zone}; it is like Europe/Berlin or UTC").format(zone=zone[:60]))
    if next(times(line, zone, datetime.now(UTC)), None) is None:
        raise CronFault(_("{line} never comes: no such day is in the next fifty years").format(line=line[:LONGEST]))


def times(line: str, zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times of the line after this one, in UTC. Raises :class:`CronFault`."""
    yield from _walk(line, zone, after)


def newest(line: str, zone: str, since: datetime, until: datetime, most: int) -> list[datetime]:
    """Return the last ``most`` times of the line from ``since`` to ``until``, oldest first. Raises
    :class:`CronFault`."""
    # Walking back is quick however long ago ``since`` is, but it passes the hour that a clock repeats only once.
    back = deque(islice(_walk(line, zone, until + timedelta(seconds=1), backwards=True), most), maxlen=1)
    begin = max(since, back[0] - timedelta(hours=3)) if back else since
    come = takewhile(lambda at: at <= until, times(line, zone, begin - timedelta(seconds=1)))
    return list(deque(come, maxlen=most))


def _walk(line: str, zone: str, begin: datetime, *, backwards: bool = False) -> Iterator[datetime]:
    said = _(
        '{line} is no cron line, or names a day that never comes; it is like "0 3 * * 1-5": minute, hour, '
        "day of the month, month, day of the week"
    )
    if len(line) > LONGEST or len(line.split()) != 5:
        raise CronFault(said.format(line=line[:LONGEST]))
    try:
        found = CronSim(line, begin.astimezone(ZoneInfo(zone)), reverse=backwards)
    except CronSimError:
        raise CronFault(said.format(line=line)) from None
    for at in found:
        yield at.astimezone(UTC)
