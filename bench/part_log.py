"""Writes the log of a part as if an agent had sent it, whatever its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def write(part: Any, pieces: Sequence[bytes], streams: Sequence[str]) -> None:
    """Write each piece to each stream in turn, with a span for each; the part has no log yet."""
    from django.db import connection

    from controlplane.jobs import logs
    from controlplane.jobs.models import LogSpan

    spans, start, offset = [], 0, 0
    for piece in pieces:
        for stream in streams:
            spans.append(LogSpan(part=part, stream=stream, start=start, offset=offset, size=len(piece)))
            start += len(piece)
        offset += len(piece)
    LogSpan.objects.bulk_create(spans, batch_size=5_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_logspan")  # as the database does by itself when a table has grown
    logs.folder(part.id).mkdir(parents=True)
    for stream in streams:
        with (logs.folder(part.id) / stream).open("wb") as file:
            file.writelines(pieces)
