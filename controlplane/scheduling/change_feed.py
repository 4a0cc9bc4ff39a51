"""The change feed: which stages and nodes changed since this process last read it. Database triggers write it.

Transactions do not commit in the order of their ids. Each read therefore starts at the oldest transaction that was
still open at the previous read: some changes are read twice, none is missed.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection

# Seconds that changes are kept. A reader that is more than half of that behind reloads everything.
KEPT_S: Final = 600.0

_CHANGED = """
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
       ARRAY(SELECT DISTINCT stage_id FROM jobs_change WHERE xact >= %s AND stage_id IS NOT NULL),
       ARRAY(SELECT DISTINCT node_id FROM jobs_change WHERE xact >= %s AND node_id IS NOT NULL),
       EXISTS (SELECT 1 FROM jobs_change WHERE xact >= %s AND stage_id IS NULL AND node_id IS NULL)
FROM pg_current_snapshot() s
"""
# Later than any transaction: a reader that reloads everything needs no list of changes.
_NOTHING: Final = 2**62


@dataclass(frozen=True, slots=True)
class Changes:
    """The ids of stages and nodes with a change that the scheduler reads."""

    stages: set[uuid.UUID]
    nodes: set[uuid.UUID]


class ChangeFeed:
    """One reader of the feed. Changes returned by :meth:`read` are acknowledged by :meth:`taken`."""

    def __init__(self) -> None:
        # The oldest transaction that had not ended at the last look that was taken, and when that was.
        self._since, self._since_at = 0, float("-inf")
        self._next, self._next_at = self._since, self._since_at

    def read(self, cursor: Any) -> Changes | None:
        """Return what changed, or ``None`` where everything has to be reloaded. Call it before reading the rows."""
        at = time.monotonic()
        is_known = at - self._since_at < KEPT_S / 2
        since = self._since if is_known else _NOTHING
        cursor.execute(_CHANGED, [since, since, since])
        oldest, newest, stages, nodes, everything = cursor.fetchone()
        self._next, self._next_at = oldest, at
        # Another cluster's transactions, as after a restore, have other numbers.
        return Changes(set(stages), set(nodes)) if is_known and not everything and newest >= since else None

    def taken(self) -> None:
        """Acknowledge the last read."""
        self._since, self._since_at = self._next, self._next_at


def forget_old() -> None:
    """Delete changes older than :data:`KEPT_S`."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobs_change WHERE at < now() - make_interval(secs => %s)", [KEPT_S])
