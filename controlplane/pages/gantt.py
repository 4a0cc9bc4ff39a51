"""Bars on lanes, as the script draws them: one item per attempt, hatched ones for what is only planned."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.utils.dateparse import parse_datetime

# How an attempt's end looks. Whatever is not named here failed.
ENDED = {"": "COMPLETED", "CHECKPOINTED": "COMPLETED", "CANCELLED": "CANCELLED"}
GAVE_WAY = {"PREEMPTED", "MOVE", "RESIZE"}


def look(attempt: Mapping[str, Any], state: str) -> str:
    """The look of an attempt's bar: a state, or PREEMPTED. ``state`` is its stage's, its own while it lives."""
    cause = attempt.get("cause") or ""
    if attempt.get("ended_at"):
        return "PREEMPTED" if cause in GAVE_WAY else ENDED.get(cause, "FAILED")
    return state


def moment(value: str) -> datetime:
    """An RFC 3339 time of the API's answers."""
    found = parse_datetime(value)
    if found is None:
        raise ValueError(f"{value!r} is no time")
    return found


def window(items: list[dict[str, Any]], now: datetime, least: timedelta = timedelta(minutes=2)) -> dict[str, str]:
    """A range that shows all items, with a little room at both ends."""
    starts = [moment(item["from"]) for item in items] or [now]
    ends = [moment(item["to"]) if item.get("to") else now for item in items] or [now]
    first, last = min(starts), max([*ends, now] if any(not item.get("to") for item in items) else ends)
    if last - first < least:
        last = first + least
    room = (last - first) * 0.03
    return {"from": (first - room).isoformat(), "to": (last + room * 2).isoformat()}
