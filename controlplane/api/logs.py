"""Logs of a job, as bytes from an offset: the source is never asked twice for the same byte."""

from __future__ import annotations

import msgspec
from django.db.models import F, Max
from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.jobs import found
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, asked, parameters, signed_in
from controlplane.jobs import logs
from controlplane.jobs import models as rows
from controlplane.jobs.values import nearest

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


class StreamQuery(msgspec.Struct, frozen=True):
    """Of which stage."""

    stage: str = ""


class LogQuery(msgspec.Struct, frozen=True):
    """Which bytes of which stream. Without a stage: the one that started last; without an attempt: the newest."""

    stage: str = ""
    attempt: int | None = None
    rank: int = 0
    stream: str = "both"
    offset: int | None = None
    limit: int = USUAL_BYTES
    tail: int | None = None


DESCRIBED = {
    "stage": "Name of a stage; by default the one that started last.",
    "attempt": "Number of an attempt; by default the newest.",
    "rank": "Rank of the node within the attempt.",
    "stream": "out, err, or both in the order of their arrival.",
    "offset": "Where to begin, in bytes of this stream.",
    "limit": f"At most so many bytes, up to {MOST_BYTES:,}.",
    "tail": "Begin so many lines before the end instead.",
}


class JobStreams(Resource):
    """The log streams of a job."""

    @extend_schema(
        operation_id="jobs_streams",
        responses={200: LogStreamList, 404: Problem},
        parameters=parameters(StreamQuery, {"stage": "Name of a stage; all by default."}),
    )
    def get(self, request: Request, name: str) -> Response:
        """Which streams there are, and their lengths."""
        query, job = asked(request, StreamQuery), found(signed_in(request), name)
        whose = {"part__attempt__stage__name": query.stage} if query.stage else {}
        spans = (
            rows.LogSpan.objects.filter(part__attempt__stage__job=job, **whose)
            .values_list("part__attempt__stage__name", "part__attempt__number", "part__rank", "stream")
            .annotate(size_bytes=Max(F("offset") + F("size")))
            .order_by("part__attempt__stage__index", "part__attempt__number", "part__rank", "stream")
        )
        told = [LogStream(*row) for row in spans[: MOST_STREAMS + 1]]
        return Response(LogStreamList(told[:MOST_STREAMS], len(told) > MOST_STREAMS))


class JobLogs(Resource):
    """The log of one rank of an attempt of a stage."""

    @extend_schema(
        operation_id="jobs_logs",
        parameters=parameters(LogQuery, DESCRIBED),
        responses={
            (200, "text/plain"): OpenApiResponse(
                OpenApiTypes.STR,
                "The bytes as the stage wrote them. X-Log-Next-Offset says where to go on, X-Log-Cut that the log "
                "reached its largest size and what came after was dropped.",
            ),
            404: Problem,
            410: Problem,
        },
    )
    def get(self, request: Request, name: str) -> HttpResponse:
        """The log's bytes from an offset on, or its last lines."""
        query, job = asked(request, LogQuery), found(signed_in(request), name)
        _check(query)
        part = _part(job, query)
        if part is not None and (gone := rows.PartLog.objects.filter(part=part, gone_at__isnull=False).first()):
            detail = _("this log was removed on {day}: it was old, or its project had too many bytes of logs")
            raise Refused(410, "log_expired", detail.format(day=gone.gone_at.date().isoformat()))
        content, next_offset, size = (b"", 0, 0) if part is None else read(part, query)
        response = HttpResponse(content, content_type="text/plain; charset=utf-8")
        response["X-Log-Next-Offset"] = str(next_offset)
        response["X-Log-Size"] = str(size)
        if part is not None and logs.is_cut(logs.size(part, "both")):
            response["X-Log-Cut"] = "true"
        # The page shows text in its own way; a browser that is sent here directly must never run what a job printed.
        response["Content-Security-Policy"] = "sandbox; default-src 'none'"
        response["X-Content-Type-Options"] = "nosniff"
        return response


def _check(query: LogQuery) -> None:
    if query.stream not in {"out", "err", "both"}:
        raise Refused(400, "invalid", _("stream must be out, err or both"))
    if not 1 <= query.limit <= MOST_BYTES:
        raise Refused(400, "invalid", _("limit must be a number of bytes from 1 to {most:,}").format(most=MOST_BYTES))
    if query.tail is not None and not 0 <= query.tail <= MOST_LINES:
        raise Refused(400, "invalid", _("tail must be a number of lines from 0 to {most:,}").format(most=MOST_LINES))
    if (query.offset or 0) < 0 or query.rank < 0:
        raise Refused(400, "invalid", _("offset and rank must be 0 or more"))


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
            raise not_found(_("rank {rank} in this attempt").format(rank=query.rank))
        return part
    names = list(job.stages.values_list("name", flat=True))
    if query.stage and query.stage not in names:
        detail = _("job {number} has no stage {name!r}; {nearest}").format(
            number=job.number, name=query.stage[:63], nearest=nearest(query.stage, names)
        )
        raise Refused(404, "not_found", detail)
    if query.attempt is not None:
        raise not_found(_("attempt {name}").format(name=query.attempt))
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
        raise Refused(410, "log_lost", _("the bytes of this log are not in the storage any more")) from None
    return content, begin + len(content), size
