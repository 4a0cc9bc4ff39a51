"""Moves the logs of parts that have ended from files to blocks in the storage ``archive``.

Blocks are written before the row refers to them, and files are removed after it, under the lock that appenders take. A
move may therefore be interrupted at any point and repeated, also by two processes at once. Output that an agent sends
after a move is appended to a file, read from there, and moved with the next move.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from controlplane.jobs import log_blocks, logs
from controlplane.jobs.models import PartLog

log = logging.getLogger(__name__)

# One run starts further logs for this long; the next run continues.
LONGEST_S: Final = 45.0
RETRY_S: Final = 3_600

# A log whose move failed comes after the others.
_NEXT = """
UPDATE jobs_partlog SET archive_tried_at = now() WHERE part_id = (
    SELECT l.part_id FROM jobs_partlog l JOIN jobs_part p ON p.id = l.part_id
    WHERE l.gone_at IS NULL AND l.archived_at IS NULL AND p.ended_at < now() - make_interval(secs => %(after)s)
        AND (l.archive_tried_at IS NULL OR l.archive_tried_at < now() - make_interval(secs => %(retry)s))
    ORDER BY l.written_at LIMIT 1 FOR UPDATE OF l SKIP LOCKED)
RETURNING part_id
"""


def move_due(longest_s: float = LONGEST_S) -> int:
    """Move logs, oldest writes first, until none is due or the time is up; return how many were moved.

    Raises errors of the storage, because the next log would fail in the same way.
    """
    until, moved = time.monotonic() + longest_s, 0
    while time.monotonic() < until and (part := _next()):
        try:
            moved += move(part)
        except logs.LogLost as error:
            log.warning("a log was not archived: %s", error)
    return moved


def _next() -> uuid.UUID | None:
    with connection.cursor() as cursor:
        cursor.execute(_NEXT, {"after": settings.LOG_ARCHIVE_AFTER_S, "retry": RETRY_S})
        row = cursor.fetchone()
    return row[0] if row else None


def move(part: uuid.UUID) -> bool:
    """Move the log of a part; return False if it grew or was removed meanwhile."""
    ends = _ends(part)
    had = logs.archived([part]).get(part, dict.fromkeys(logs.STREAMS, 0))
    with logs.Reader(part) as reader:
        for stream, end in ends.items():
            # Full blocks stay as they are.
            for number in log_blocks.numbers(had[stream], end):
                begin, size = number * log_blocks.BLOCK_BYTES, log_blocks.length(number, end)
                log_blocks.write(part, stream, number, reader.exactly(stream, begin, size))
    new, old = _names(part, ends), _names(part, had)
    with transaction.atomic():
        logs.lock(part)
        if not PartLog.objects.filter(part_id=part, gone_at=None).exists():
            log_blocks.remove(new)
            return False
        if _ends(part) != ends:
            return False
        PartLog.objects.filter(part_id=part).update(
            archived_out=ends["out"], archived_err=ends["err"], archived_at=Now()
        )
        log_blocks.remove(old - new)
    return logs.clear(part)


def _ends(part: uuid.UUID) -> dict[str, int]:
    found = logs.ends([part])
    return {stream: found.get((part, stream), 0) for stream in logs.STREAMS}


def _names(part: uuid.UUID, ends: Mapping[str, int]) -> set[str]:
    return {name for stream, end in ends.items() for name in log_blocks.names(part, stream, end)}


def bring_back(part: uuid.UUID) -> None:
    """Move the log of a part back into files, for the previous release, which has no archive."""
    with transaction.atomic():
        logs.lock(part)
        for stream, end in logs.archived([part]).get(part, {}).items():
            with logs.Reader(part) as reader:
                for at in range(0, end, logs.PIECE_BYTES):
                    content = reader.exactly(stream, at, min(logs.PIECE_BYTES, end - at))
                    logs.write([logs.Piece(part, stream, at, content)])
            log_blocks.remove(log_blocks.names(part, stream, end))
        PartLog.objects.filter(part_id=part).update(
            archived_out=0, archived_err=0, archived_at=None, archive_tried_at=None
        )
