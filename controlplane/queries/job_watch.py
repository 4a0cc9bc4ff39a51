"""Which jobs changed since a moment, for those who watch a list of jobs.

A moment is a cursor: the oldest transaction that was open then (see ``scheduling.change_feed``), and the time. Some
changes are told twice, none is missed; a cursor that is older than the feed is refused.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from django.db import connection
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.jobs import models as rows
from controlplane.queries import job_rows, jobs
from controlplane.queries.refusals import Unanswerable

# A cursor that is older than this is refused; the feed keeps changes for twice as long.
KEPT_S: Final = 300.0
# So many open jobs are told to who begins to watch, the newest of longer lists.
MOST: Final = 1_000
AT_ONCE: Final = 200

_NOW: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_CHANGED: Final = """
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
       ARRAY(SELECT DISTINCT t.job_id FROM jobs_change c JOIN jobs_stage t ON t.id = c.stage_id WHERE c.xact >= %s),
       EXISTS (SELECT 1 FROM jobs_change WHERE xact >= %s AND stage_id IS NULL AND node_id IS NULL)
FROM pg_current_snapshot() s
"""


class CursorGone(Exception):
    """Raised if a cursor is too old, or of another database; whoever watches begins anew."""


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """A moment of the database."""

    xact: int
    at: float

    def __str__(self) -> str:
        return f"{self.xact}.{int(self.at)}"


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found: jobs as they are now, and the numbers of those that the filters do not match any more.

    ``anew`` tells that everything may have changed, as when a project got another name.
    """

    cursor: WatchCursor
    jobs: list[job_rows.Job]
    left: list[int]
    anew: bool = False


def cursor_of(text: str) -> WatchCursor:
    """Read a cursor. Raises Unanswerable."""
    if not re.fullmatch(r"[0-9]{1,19}\.[0-9]{1,12}", text):
        raise Unanswerable(_("since must be the id of an event of this stream"))
    xact, _dot, at = text.partition(".")
    return WatchCursor(int(xact), float(at))


def begin(user: User, params: Mapping[str, str]) -> Looked:
    """Return the jobs that match now and have not ended, at most :data:`MOST`, newest first, and where to go on."""
    with connection.cursor() as cursor:
        cursor.execute(_NOW)
        at = WatchCursor(cursor.fetchone()[0], time.time())
    matching = _matching(user, params)
    if not params.get("state"):
        matching = matching.filter(ended_at=None)
    return Looked(at, jobs.shown(matching.order_by("-number")[:MOST], user), [])


def changes(user: User, params: Mapping[str, str], since: WatchCursor) -> Iterator[Looked]:
    """Yield what changed since a cursor, a part of it each time; only the last part has the cursor to go on with.

    Raises CursorGone.
    """
    if not time.time() - KEPT_S < since.at < time.time() + KEPT_S:
        raise CursorGone
    with connection.cursor() as cursor:
        at = time.time()
        cursor.execute(_CHANGED, [since.xact, since.xact])
        oldest, newest, ids, anew = cursor.fetchone()
    if newest < since.xact:
        raise CursorGone  # another cluster's transactions, as after a restore, have other numbers
    here = WatchCursor(oldest, at)
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        is_last = first + AT_ONCE >= len(ids)
        yield Looked(here if is_last else since, *_told(user, params, some), anew=anew and is_last)
    if not ids:
        yield Looked(here, [], [], anew=anew)


def _told(user: User, params: Mapping[str, str], ids: list[uuid.UUID]) -> tuple[list[job_rows.Job], list[int]]:
    found = jobs.shown(_matching(user, params).filter(id__in=ids).order_by("number"), user)
    known = {job.number for job in found}
    seen = jobs.visible(user).filter(id__in=ids).values_list("number", flat=True)
    return found, sorted(set(seen) - known)


def _matching(user: User, params: Mapping[str, str]) -> QuerySet[rows.Job]:
    """Return the jobs that match the filters of the list of jobs. Raises Unanswerable."""
    found: QuerySet[rows.Job] = jobs.JobFilter(params, job_rows.whole(jobs.visible(user)), user=user).qs
    return found
