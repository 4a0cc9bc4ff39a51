"""Estimates the difference between this host's clock and the control plane's, from the date of its answers; only shown.

No decision compares clocks of two machines. But logs of a host whose clock is wrong mislead their readers, and its
certificates seem to have expired.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

from agents.ends import clause
from agents.notes import NoteText

# The date has a resolution of one second, and the answer took some time to arrive.
NOTED_FROM_S: Final = 10.0


def skew_s(date: str | None, now: float) -> float | None:
    """Return how many seconds ``now``, a time of this host, is ahead of the date of an answer; None if it has none."""
    try:
        return now - parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def note(found_s: float | None) -> NoteText | None:
    """Return the warning for people; None if the difference is small."""
    if found_s is None or abs(found_s) < NOTED_FROM_S:
        return None
    about_s = round(abs(found_s), -1)
    return NoteText(clause("ClockAhead", ahead_s=about_s) if found_s > 0 else clause("ClockBehind", behind_s=about_s))
