"""The calendar: windows and reservations by day, in a month or a week of the reader's time zone, and what is ahead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from controlplane.accounts import permissions
from controlplane.accounts.permissions import Permit
from controlplane.fleet import maintenance as windows
from controlplane.fleet import reservations as kept
from controlplane.natural import natural_key
from controlplane.pages.shell import page, reader
from controlplane.pools.models import Pool
from controlplane.queries import maintenance, reservations
from controlplane.queries.calendar_entry import EntryFields
from controlplane.queries.refusals import Unanswerable
from controlplane.queries.reservations import CalendarSpan

VIEWS: Final = ("month", "week")
MOST_OF_A_DAY: Final = {"month": 4, "week": 40}
MOST_LISTED: Final = 200
# Days outside of these years have no neighbours that every zone can name.
YEARS: Final = range(2000, 2200)


@dataclass(frozen=True, slots=True)
class Shown:
    """One time on one day: ``when`` is its part of that day."""

    span: CalendarSpan
    path: str
    when: str


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the calendar; ``more`` counts what does not fit."""

    date: date
    entries: list[Shown]
    more: int
    is_today: bool
    is_beside: bool


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    today = timezone.localdate()
    view, at = request.GET.get("view", "month"), _day(request.GET.get("at", ""), today)
    if view not in VIEWS:
        raise Unanswerable(_("view is month or week"))
    pools = sorted(Pool.objects.values_list("name", flat=True), key=natural_key)
    pool = request.GET.get("pool", "")
    if pool and pool not in pools:
        raise Unanswerable(_("there is no pool {name}").format(name=pool[:63]))
    days = _days(view, at)
    found = reservations.spans(_midnight(days[0]), _midnight(days[-1] + timedelta(days=1)), pool)
    user = reader(request)
    return page(
        request,
        "calendar.html",
        {
            "weeks": _weeks(days, found.results, view, at, today),
            "is_cut": found.more,
            "ahead": list(_ahead(request))[:MOST_LISTED],
            "view": view,
            "at": at,
            "today": today,
            "before": _moved(view, at, -1),
            "after": _moved(view, at, 1),
            "pools": pools,
            "pool": pool,
            "zone": timezone.get_current_timezone_name(),
            "has_zone": bool(user.time_zone),
            "may_plan_windows": permissions.may(user, Permit.PLAN_MAINTENANCE),
            "may_plan_reservations": permissions.may(user, Permit.PLAN_RESERVATIONS),
        },
        place="calendar",
        crumbs=[(_("Calendar"), "")],
    )


def _day(text: str, today: date) -> date:
    if not text:
        return today
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = date.min
    if found.year not in YEARS:
        raise Unanswerable(_("at is a day such as {day}").format(day=today.isoformat()))
    return found


def _days(view: str, at: date) -> list[date]:
    """The days of whole weeks, from Monday on, that the view has."""
    first, last = at, at
    if view == "month":
        first = at.replace(day=1)
        last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    begin = first - timedelta(days=first.weekday())
    end = last + timedelta(days=6 - last.weekday())
    return [begin + timedelta(days=count) for count in range((end - begin).days + 1)]


def _moved(view: str, at: date, by: int) -> date:
    """A day of the month or week before or after."""
    if view == "week":
        return at + timedelta(weeks=by)
    return at.replace(day=1) + timedelta(days=31) if by > 0 else at.replace(day=1) - timedelta(days=1)


def _midnight(day: date) -> datetime:
    """The beginning of a day in the reader's zone."""
    return datetime.combine(day, time(), timezone.get_current_timezone()).astimezone(UTC)


def _weeks(days: list[date], spans: Iterable[CalendarSpan], view: str, at: date, today: date) -> list[list[Day]]:
    by_day: dict[date, list[CalendarSpan]] = defaultdict(list)
    for span in spans:
        # What ends at midnight is not on the next day.
        last = timezone.localdate(span.ends_at - timedelta(microseconds=1))
        day = max(timezone.localdate(span.starts_at), days[0])
        while day <= min(last, days[-1]):
            by_day[day].append(span)
            day += timedelta(days=1)
    most = MOST_OF_A_DAY[view]
    shown = [
        Day(
            day,
            [Shown(span, path_of(span.kind, span.id, span.name), _when(span, day)) for span in by_day[day][:most]],
            max(0, len(by_day[day]) - most),
            day == today,
            view == "month" and day.month != at.month,
        )
        for day in days
    ]
    return [shown[index : index + 7] for index in range(0, len(shown), 7)]


def path_of(kind: str, number: int | None, name: str) -> str:
    """The page of an entry."""
    return f"/calendar/maintenance/{number}" if kind == "maintenance" else f"/calendar/reservations/{name}"


def _when(span: CalendarSpan, day: date) -> str:
    begins, ends = timezone.localtime(span.starts_at), timezone.localtime(span.ends_at)
    last = timezone.localdate(span.ends_at - timedelta(microseconds=1))
    if begins.date() == day and last == day:
        return f"{begins:%H:%M}–{'24:00' if ends.date() > day else f'{ends:%H:%M}'}"
    if begins.date() == day:
        return _("from {time}").format(time=f"{begins:%H:%M}")
    if last == day and ends.date() == day:
        return _("until {time}").format(time=f"{ends:%H:%M}")
    return _("all day")


def _ahead(request: HttpRequest) -> Iterable[dict[str, Any]]:
    """What has not ended, that which is now or next first."""
    now = timezone.now()
    found: list[tuple[EntryFields, dict[str, Any]]] = [
        (one, {"path": path_of("maintenance", one.id, ""), "kind": "maintenance", "name": "", "nodes": [one.node],
               "pool": one.pool, "project": "", "users": []})
        for one in maintenance.shown(windows.ahead(now)[:MOST_LISTED])
    ]  # fmt: skip
    found += [
        (one, {"path": path_of("reservation", None, one.name), "kind": "reservation", "name": one.name,
               "nodes": one.nodes, "pool": None, "project": one.project, "users": one.users})
        for one in reservations.shown(kept.ahead(now)[:MOST_LISTED], reader(request))
    ]  # fmt: skip
    for one, more in sorted(found, key=lambda each: each[0].next_starts_at):
        yield {"entry": one, "is_now": one.next_starts_at <= now < one.next_ends_at, **more}
