"""How far this host's clock is from the control plane's, as the date of its answers tells; for people alone.

No decision compares clocks of two machines. But logs of a host whose clock is wrong mislead whoever reads them, and its
certificates seem to have ended.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

# The date of an answer has whole seconds, and the answer took a while.
NOTED_FROM_S: Final = 10.0


def skew_s(date: str | None, now: float) -> float | None:
    """Seconds by which ``now``, a time of this host, is ahead of the date of an answer; None where that tells none."""
    try:
        return now - parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def sentence(found_s: float | None) -> str:
    """What people are told of it; empty where there is nothing to tell."""
    if found_s is None or abs(found_s) < NOTED_FROM_S:
        return ""
    about_s = round(abs(found_s), -1)
    if found_s > 0:
        return f"its clock is about {about_s:.0f} s ahead of the control plane's"
    return f"its clock is about {about_s:.0f} s behind the control plane's"
