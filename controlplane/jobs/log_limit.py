"""The size limit of a log, and the event of a log that reached it."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Final

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import clause, told
from controlplane.jobs import service
from controlplane.jobs.models import Event, Part

CUT: Final = "log_cut"


def is_cut(size: int) -> bool:
    """Whether the log of a part, both streams together, reached its size limit, after which output was dropped."""
    return size > settings.LOG_MAX_BYTES


def cut_here() -> bytes:
    """Return the text at the end of a log that was cut."""
    return f"\n[switchyard: this log reached {settings.LOG_MAX_BYTES:,} bytes; what came after is dropped]\n".encode()


def note(parts: Collection[uuid.UUID]) -> None:
    """Note in the events of their jobs that the logs of these parts were cut, once for each part.

    It is called with each refused append, so a server that is killed before noting it loses no event.
    """
    untold = [part for part in parts if not _events(part).exists()]
    if not untold:
        return
    with transaction.atomic():
        found = list(Part.objects.filter(id__in=untold).select_related("attempt__stage").order_by("id"))
        jobs = service.lock({part.attempt.stage.job_id for part in found})
        notes = []
        for part in found:
            if _events(part.id).exists():
                continue
            job, stage = jobs[part.attempt.stage.job_id], part.attempt.stage.name
            what = told(clause("LogCut", stage=stage, rank=part.rank, limit_bytes=settings.LOG_MAX_BYTES))
            about = {"part": str(part.id), "rank": part.rank, "limit_bytes": settings.LOG_MAX_BYTES}
            notes.append(service.Note(job, CUT, what, "server", stage, part.attempt.number, about))
        service.settle(jobs.values(), notes, timezone.now())
        keys = [f"job:{note.job.number}" for note in notes]
        transaction.on_commit(lambda: changes.announce(*keys))


def _events(part: uuid.UUID) -> QuerySet[Event]:
    of_job = Event.objects.filter(job__stages__attempts__parts=part, kind=CUT)
    return of_job.filter(params__part=str(part))
