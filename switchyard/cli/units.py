"""Formats times, spans, sizes and asks for people."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def parse_time(text: object) -> datetime | None:
    """Parse RFC 3339 text to an aware time; ``None`` for anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def span(seconds: float | None) -> str:
    """Format seconds: ``45s``, ``12m``, ``3h05m``, ``2d04h``; empty for none."""
    if seconds is None:
        return ""
    s = max(0, int(seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s" if s < 600 else f"{s // 60}m"
    if s < 86400:
        return f"{s // 3600}h{s % 3600 // 60:02d}m"
    return f"{s // 86400}d{s % 86400 // 3600:02d}h"


def since(begin: object, end: object = None, now: datetime | None = None) -> float | None:
    """Return seconds from ``begin`` to ``end``, or until now."""
    started = parse_time(begin)
    if started is None:
        return None
    until = parse_time(end) or now or datetime.now(UTC)
    return (until - started).total_seconds()


def clock(text: object, utc: bool = False) -> str:
    """Format a time of day in the reader's zone, with the date unless it is today."""
    moment = parse_time(text)
    if moment is None:
        return ""
    moment = moment.astimezone(UTC if utc else None)
    today = datetime.now(moment.tzinfo).date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M")


def size(count: float | None) -> str:
    """Format bytes in binary units: ``80 GiB``; empty for none."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.0f} GiB" if count >= 10 or count == int(count) else f"{count:.1f} GiB"


def counted(count: int, one: str, many: str) -> str:
    """Format a count with its words: ``1 job runs``, ``1,200 jobs run``."""
    return f"{count:,} {one if count == 1 else many}"


def device_hours(device_s: float) -> str:
    """Format device-seconds: ``1.5 device-hours``."""
    return f"{device_s / 3600:.1f} device-hours"


def natural(name: str) -> str:
    """Return a sort key for natural order: each number is preceded by its number of digits."""
    return re.sub("[0-9]+", lambda found: f"{len(found[0].lstrip('0')):03}{found[0].lstrip('0')}", name) + f" {name}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}%"


def share(milli: int | None, capacity: int | None) -> str:
    """Format a claim on a device in whole devices or cores: ``0.25/1``."""
    if milli is None or not capacity:
        return ""
    return f"{milli / 1000:g}/{capacity / 1000:g}"


def reason(found: object) -> str:
    """Return the sentence of a reason, whether it came as text or as an object."""
    if isinstance(found, Mapping):
        return str(found.get("text") or found.get("code") or "")
    return str(found or "")


def placed(stage: Mapping[str, Any]) -> str:
    """Format where a stage runs: ``g07 gpu0,gpu1`` for each rank, a partition as ``g07 gpu2 1g.10gb@3``."""
    parts = []
    for part in stage.get("placed") or []:
        devices = [d for d in part.get("devices") or [] if d.get("kind") != "cpu"] or part.get("devices") or []
        names = ",".join(f"{d.get('kind', '?')}{d.get('index', '')}{_partition(d)}" for d in devices)
        parts.append(f"{part.get('node', '?')} {names}".strip())
    return "; ".join(parts)


def _partition(device: Mapping[str, Any]) -> str:
    """Return the held partition of a device and its first slot, if it is one."""
    profile, slot = device.get("partition"), device.get("slot")
    if not profile:
        return ""
    return f" {profile}" if slot is None else f" {profile}@{slot}"


def number(job: Mapping[str, Any]) -> str:
    """Return the number by which people name a job: ``42_7`` for an element of an array."""
    place = job.get("array")
    return f"{place['number']}_{place['index']}" if place else str(job["number"])


def counts(states: Mapping[str, int]) -> str:
    """Return the elements of an array by state: ``2 RUNNING, 14 PENDING``."""
    order = ("RUNNING", "STARTING", "STOPPING", "SUSPENDED", "PENDING", "HELD", "FAILED", "CANCELLED", "COMPLETED")
    return ", ".join(f"{states[state]} {state}" for state in order if states.get(state)) or "no elements"


def amount(text: str) -> float | str:
    """Parse a number of an option; ``none`` is unlimited."""
    if text == "none":
        return text
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write it like 8, or none") from None
    return int(number) if number.is_integer() else number


def amount_of(value: object) -> str:
    """Return a number for people; no number is unlimited."""
    return "unlimited" if value is None else f"{float(str(value)):g}"
