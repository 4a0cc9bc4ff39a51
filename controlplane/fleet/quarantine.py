"""Parts that an agent could not adopt at its start: which, since when, and what a person decided about them.

An entry is part of the node's conditions for as long as the agent reports it. A decision is stored in it and sent with
the node's orders; it holds for one try, so a failed try needs another decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from agents.protocol import AsideOrder, SetAside


def noted(before: Mapping[str, Any], reported: Sequence[SetAside], now: datetime) -> list[dict[str, Any]]:
    """Merge the reported entries with the times and decisions of earlier ones."""
    known = {entry["part"]: entry for entry in before.get("aside", ())}
    return [_entry(known.get(each.part, {}), each, now) for each in reported]


def _entry(former: Mapping[str, Any], reported: SetAside, now: datetime) -> dict[str, Any]:
    since = former.get("since") or (now - timedelta(seconds=max(0.0, min(reported.age_s, 1e9)))).isoformat()
    asked = former.get("asked", {}) if former.get("tries") == reported.tries else {}
    return {
        "part": reported.part,
        "folder": reported.folder[:500],
        "reason": reported.reason[:500],
        "since": since,
        "tries": reported.tries,
        "asked": asked,
    }


def orders(entries: Sequence[Mapping[str, Any]]) -> list[AsideOrder]:
    """Return decisions that are not carried out yet."""
    return [AsideOrder(each["part"], each["asked"]["do"], each["tries"]) for each in entries if each.get("asked")]
