"""Logs of a job, as bytes from an offset, so that no byte is requested twice from the source."""

from __future__ import annotations

import msgspec
from django.db.models import F, Max
from django.http import Http404
from django.utils.translation import gettext as _

from controlplane.jobs import log_limit, logs
from controlplane.jobs import models as rows
from controlplane.jobs.values import nearest
from controlplane.queries.refusals import Unanswerable, Unseen

USUAL_BYTES = 256 * 1024
MOST_BYTES = 4 * 2**20
MOST_LINES = 50_000
MOST_STREAMS = 10_000


class LogStream(msgspec.Struct, frozen=True):
    """One stream of one rank of an attempt, and how many bytes of it are here."""

    stage: str
    attempt: int
    rank: int
    stream: str
    size_bytes: int


class LogStreamList(msgspec.Struct, frozen=True):
    """The streams of a job, in the order of its stages and attempts. ``truncated`` tells that there are more: name a
    stage."""

    results: list[LogStream]
    truncated: bool


class NoSuchStage(Unseen):
    """The job has no stage of that name; the message has the nearest one."""

    def __init__(self, detail: str) -> None:
        Http404.__init__(self, detail)


class LogGone(Exception):
    """Bytes of a log were here and are no more."""


class LogQuery(msgspec.Struct, frozen=True):
    """Which bytes of which stream. Without a stage: the one that started last; without an attempt: the newest."""

    stage: str = ""
    attempt: int | None = None
    rank: int = 0
    stream: str = "both"
    offset: int | None = None
    limit: int = USUAL_BYTES
    tail: int | None = None


def streams(job: rows.Job, stage: str = "") -> LogStreamList:
    """The log streams of this job, or of one of its stages, and their lengths."""
    whose = {"part__attempt__stage__name": stage} if stage else {}
    spans = (
        rows.LogSpan.objects.filter(part__attempt__stage__job=job, **whose)
        .values_list("part__attempt__stage__name", "part__attempt__number", "part__rank", "stream")
        .annotate(size_bytes=Max(F("offset") + F("size")))
        .order_by("part__attempt__stage__index", "part__attempt__number", "part__rank", "stream")
    )
    told = [LogStream(*row) for row in spans[: MOST_STREAMS + 1]]
    return LogStreamList(told[:MOST_STREAMS], len(told) > MOST_STREAMS)


def of_job(job: rows.Job, query: LogQuery) -> tuple[bytes, int, int, bool]:
    """As :func:`read`, and whether the log was cut at its largest size; nothing where the stage was not tried yet."""
    _check(query)
    part = _part(job, query)
    if part is None:
        return b"", 0, 0, False
    removed = rows.PartLog.objects.filter(part=part, gone_at__isnull=False).values_list("gone_at", flat=True).first()
    if removed:
        detail = _("this log was removed on {day}: it was old, or its project had too many bytes of logs")
        raise LogGone(detail.format(day=removed.date().isoformat()))
    return (*read(part, query), log_limit.is_cut(logs.size(part, "both")))


def _check(query: LogQuery) -> None:
    if query.stream not in {"out", "err", "both"}:
        raise Unanswerable(_("stream must be out, err or both"))
    if not 1 <= query.limit <= MOST_BYTES:
        raise Unanswerable(_("limit must be a number of bytes from 1 to {most:,}").format(most=MOST_BYTES))
    if query.tail is not None and not 0 <= query.tail <= MOST_LINES:
        raise Unanswerable(_("tail must be a number of lines from 0 to {most:,}").format(most=MOST_LINES))
    if (query.offset or 0) < 0 or query.rank < 0:
        raise Unanswerable(_("offset and rank must be 0 or more"))


def _part(job: rows.Job, query: LogQuery) -> rows.Part | None:
    """The part whose log is asked for; None where the stage has not been tried yet. Raises 404 for a wrong name."""
    attempts = rows.Attempt.objects.filter(stage__job=job)
    if query.stage:
        attempts = attempts.filter(stage__name=query.stage)
    if query.attempt is not None:
        attempts = attempts.filter(number=query.attempt)
    attempt = attempts.order_by("-created_at", "-number").first()
    if attempt is not None:
        part = attempt.parts.filter(rank=query.rank).first()
        if part is None:
            raise Unseen(_("rank {rank} in this attempt").format(rank=query.rank))
        return part
    names = list(job.stages.values_list("name", flat=True))
    if query.stage and query.stage not in names:
        detail = _("job {number} has no stage {name!r}; {nearest}").format(
            number=job.number, name=query.stage[:63], nearest=nearest(query.stage, names)
        )
        raise NoSuchStage(detail)
    if query.attempt is not None:
        raise Unseen(_("attempt {name}").format(name=query.attempt))
    return None


def read(part: rows.Part, query: LogQuery) -> tuple[bytes, int, int]:
    """The bytes asked for, the offset after them, and the size of all."""
    size = logs.size(part, query.stream)
    try:
        if query.tail is not None:
            return logs.tail(part, query.stream, query.tail)[-max(query.limit, USUAL_BYTES) :], size, size
        begin = min(query.offset or 0, size)
        content = logs.read(part, query.stream, begin, query.limit)
    except logs.LogLost:
        raise LogGone(_("the bytes of this log are not in the storage any more")) from None
    return content, begin + len(content), size
