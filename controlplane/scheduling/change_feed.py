"""The change feed: which stages and nodes have changed since this process looked last. Triggers write it down.

A transaction's changes are seen when it commits, which may be after a later one's. So each look asks again from the
oldest transaction that had not ended at the look before: what it reads twice costs time, and nothing is missed.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection

# What was written down is kept for so long, and who has not looked for half of it loads everything.
KEPT_S: Final = 600.0

_CHANGED = """
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
       ARRAY(SELECT DISTINCT stage_id FROM jobs_change WHERE xact >= %s AND stage_id IS NOT NULL),
       ARRAY(SELECT DISTINCT node_id FROM jobs_change WHERE xact >= %s AND node_id IS NOT NULL),
       EXISTS (SELECT 1 FROM jobs_change WHERE xact >= %s AND stage_id IS NULL AND node_id IS NULL)
FROM pg_current_snapshot() s
"""
# After every transaction there will be: whoever reads everything needs no list of changes.
_NOTHING: Final = 2**62


@dataclass(frozen=True, slots=True)
class Changes:
    """The ids of stages and nodes of which something changed that the scheduler reads."""

    stages: set[uuid.UUID]
    nodes: set[uuid.UUID]


class Feed:
    """One reader. What :meth:`read` gave counts as read once :meth:`taken` is called."""

    def __init__(self) -> None:
        # The oldest transaction that had not ended at the last look that was taken, and when that was.
        self._since, self._since_at = 0, float("-inf")
        self._next, self._next_at = self._since, self._since_at

    def read(self, cursor: Any) -> Changes | None:
        """What has changed, to be asked before any of it is read; ``None`` where everything is to be read."""
        at = time.monotonic()
        is_known = at - self._since_at < KEPT_S / 2
        since = self._since if is_known else _NOTHING
        cursor.execute(_CHANGED, [since, since, since])
        oldest, newest, stages, nodes, everything = cursor.fetchone()
        self._next, self._next_at = oldest, at
        # Another cluster's transactions, as after a restore, have other numbers.
        return Changes(set(stages), set(nodes)) if is_known and not everything and newest >= since else None

    def taken(self) -> None:
        """What was read is known now."""
        self._since, self._since_at = self._next, self._next_at


def forget_old() -> None:
    """Throws away what every reader has seen, or is too late for."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobs_change WHERE at < now() - make_interval(secs => %s)", [KEPT_S])
