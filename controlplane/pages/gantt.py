"""Bars on lanes, as the script draws them: one item per attempt, hatched if only planned."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

# The look of an attempt's bar by its cause; all other causes have that of a failure.
ENDED = {"": "COMPLETED", "CHECKPOINTED": "COMPLETED", "CANCELLED": "CANCELLED", "EARLY_STOPPED": "CANCELLED"}
GAVE_WAY = {"PREEMPTED", "MOVE", "RESIZE", "REQUEUED"}


def look(attempt: Mapping[str, Any], state: str) -> str:
    """The look of an attempt's bar: a state, or PREEMPTED. ``state`` is its stage's, its own while it lives."""
    cause = attempt.get("cause") or ""
    if attempt.get("ended_at"):
        return "PREEMPTED" if cause in GAVE_WAY else ENDED.get(cause, "FAILED")
    return state


def bars_of(bar: Mapping[str, Any], found: Mapping[str, Any], now: datetime, edge: datetime) -> list[dict[str, Any]]:
    """The bar of a running attempt, followed by a hatched one up to its expected end, or up to ``edge`` if it is
    overdue; an ended one is hatched from when it should have ended.

    ``found`` is an attempt or a segment of the API.
    """
    ended = found["end_at" if "end_at" in found else "ended_at"]
    if found["overdue_since_at"]:
        since = max(moment(found["overdue_since_at"]), moment(bar["from"]))
        time = timezone.localtime(since).strftime("%m-%d %H:%M %Z")
        words = (_("went on after its end was due, {time}") if ended else _("overdue since {time}")).format(time=time)
        late = {**bar, "s": "OVERDUE", "from": since.isoformat(), "to": ended or edge.isoformat(), "t": ""}
        return [{**bar, "to": since.isoformat()}, {**late, "tip": f"{bar['tip']} · {words}"}]
    if ended:
        return [dict(bar)]
    if found["expected_end_at"] and moment(found["expected_end_at"]) > now:
        ahead = {**bar, "s": "PLANNED", "from": now.isoformat(), "to": found["expected_end_at"], "t": ""}
        return [dict(bar), {**ahead, "tip": f"{bar['tip']} · {_('will probably end')}"}]
    return [dict(bar)]


def moment(value: str) -> datetime:
    """An RFC 3339 time of the API's answers."""
    found = parse_datetime(value)
    if found is None:
        raise ValueError(f"{value!r} is no time")
    return found


def window(items: list[dict[str, Any]], now: datetime, least: timedelta = timedelta(minutes=2)) -> dict[str, str]:
    """A range that shows all items, with a margin at both ends."""
    starts = [moment(item["from"]) for item in items] or [now]
    ends = [moment(item["to"]) if item.get("to") else now for item in items] or [now]
    first, last = min(starts), max([*ends, now] if any(not item.get("to") for item in items) else ends)
    if last - first < least:
        last = first + least
    room = (last - first) * 0.03
    return {"from": (first - room).isoformat(), "to": (last + room * 2).isoformat()}
