"""Parts that an agent could not take over at its start: which they are, since when, and what a person decides.

An entry stands among the conditions of its node for as long as the agent tells of it. A decision is noted in it and
goes down with the node's orders; it holds for the try that it was made on, so a failed try needs another decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from agents.protocol import AsideOrder, SetAside


def noted(before: Mapping[str, Any], told: Sequence[SetAside], now: datetime) -> list[dict[str, Any]]:
    """The entries as of a report, with the times and decisions of those that were there before."""
    known = {entry["part"]: entry for entry in before.get("aside", ())}
    return [_entry(known.get(each.part, {}), each, now) for each in told]


def _entry(former: Mapping[str, Any], told: SetAside, now: datetime) -> dict[str, Any]:
    since = former.get("since") or (now - timedelta(seconds=max(0.0, min(told.age_s, 1e9)))).isoformat()
    asked = former.get("asked", {}) if former.get("tries") == told.tries else {}
    return {
        "part": told.part,
        "folder": told.folder[:500],
        "reason": told.reason[:500],
        "since": since,
        "tries": told.tries,
        "asked": asked,
    }


def orders(entries: Sequence[Mapping[str, Any]]) -> list[AsideOrder]:
    """What was decided and is not done yet."""
    return [AsideOrder(each["part"], each["asked"]["do"], each["tries"]) for each in entries if each.get("asked")]
