"""Logs of a job, as bytes from an offset, so that no byte is requested twice from the source."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from django.db.models import F, Max
from django.http import Http404
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.jobs import log_limit, log_search, logs
from controlplane.jobs import models as rows
from controlplane.jobs.values import nearest
from controlplane.queries.refusals import Unanswerable, Unseen
from scheduler.core.model.lifecycle import FINAL

USUAL_BYTES = 256 * 1024
MOST_BYTES = 4 * 2**20
MOST_LINES = 50_000
MOST_STREAMS = 10_000
USUAL_MATCHES = 100
MOST_MATCHES = 1_000
LONGEST_TEXT = 256
SEARCHES_AT_ONCE = 2
SETTLE_S = 3.0
"""How long after the end of an attempt the last of its log may come."""


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


class LogMatch(msgspec.Struct, frozen=True):
    """A line in which the text was found: ``offset`` is the first byte of the match in the stream, ``line_offset`` that
    of ``line``. A long line is cut on either side of the match (``is_cut``)."""

    offset: int
    line_offset: int
    line: str
    is_cut: bool


class LogSearch(msgspec.Struct, frozen=True):
    """What one look at a stretch of a log found. The search goes on at ``next_offset``, unless ``is_end`` tells that
    all ``size_bytes`` were looked at."""

    results: list[LogMatch]
    next_offset: int
    size_bytes: int
    is_end: bool


class TooManySearches(Exception):
    """This user searches already, or as many people as may at once on one server."""


class BeyondEnd(Exception):
    """A range of bytes begins after the last one of a log of ``size_bytes``."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(_("the range begins after the end of this log of {size:,} bytes").format(size=size_bytes))
        self.size_bytes = size_bytes


class NoSuchStage(Unseen):
    """The job has no stage of that name; the message has the nearest one."""

    def __init__(self, detail: str) -> None:
        Http404.__init__(self, detail)


class LogGone(Exception):
    """Bytes of a log were here and are no more."""


class StreamOf(msgspec.Struct, frozen=True):
    """A stream of a job. Without a stage: the one that started last; without an attempt: the newest."""

    stage: str = ""
    attempt: int | None = None
    rank: int = 0
    stream: str = "both"


class LogQuery(StreamOf, frozen=True):
    """Which bytes of which stream."""

    offset: int | None = None
    limit: int = USUAL_BYTES
    tail: int | None = None


class LogSearchQuery(StreamOf, frozen=True, kw_only=True):
    """What to look for in which stream, from where on, and how many lines of it are wanted."""

    text: str
    offset: int = 0
    limit: int = USUAL_MATCHES
    ignore_case: bool = False


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
    _must_be_here(part)
    return (*read(part, query), log_limit.is_cut(logs.size(part, "both")))


class Followed(msgspec.Struct, frozen=True):
    """A look at a log that is followed: its part, once the stage was tried, what is new, and the offset after that.

    ``is_over`` tells that nothing more will come.
    """

    part: Any
    content: bytes
    next_offset: int
    is_over: bool


def follow(job: rows.Job, query: LogQuery) -> Followed:
    """The first look at a log that is followed: as :func:`of_job`."""
    _check(query)
    return _first(job, query)


def followed(job: rows.Job, query: LogQuery, last: Followed) -> Followed:
    """The next look at a log after the ``last`` one, in the same attempt. Raises :class:`LogGone`."""
    if last.part is None:
        return _first(job, query)
    part = rows.Part.objects.select_related("attempt").filter(pk=last.part).first()
    if part is None:
        raise _lost()
    return _grown(part, query, last.next_offset)


def _first(job: rows.Job, query: LogQuery) -> Followed:
    part = _part(job, query)
    if part is None:
        return Followed(None, b"", 0, is_over=job.state in FINAL)
    _must_be_here(part)
    if query.tail is None:
        return _grown(part, query, query.offset or 0)
    content, next_offset, _size = read(part, query)
    return Followed(part.pk, content, next_offset, is_over=False)


def _grown(part: rows.Part, query: LogQuery, offset: int) -> Followed:
    # The end is read before the bytes, so that none that came before it is left out.
    ended_at = part.attempt.ended_at
    content, next_offset, _size = read(part, LogQuery(stream=query.stream, offset=offset))
    is_over = ended_at is not None and (timezone.now() - ended_at).total_seconds() > SETTLE_S
    return Followed(part.pk, content, next_offset, is_over=is_over)


class LogRange(msgspec.Struct, frozen=True):
    """The bytes of a log from ``begin`` up to ``end``, of ``size_bytes`` that there are; read piece by piece."""

    begin: int
    end: int
    size_bytes: int
    pieces: Iterator[bytes]


def in_range(job: rows.Job, query: StreamOf, first: int | None, last: int | None) -> LogRange:
    """The bytes from ``first`` up to and with ``last`` of a log of any size.

    Without ``last`` they go to the end; without ``first`` they are the last ``last`` ones. Raises :class:`BeyondEnd`
    where there are none.
    """
    _check_stream(query)
    part = _part(job, query)
    if part is None:
        raise BeyondEnd(0)
    _must_be_here(part)
    size = logs.size(part, query.stream)
    begin = max(0, size - (last or 0)) if first is None else first
    end = size if first is None or last is None else min(last + 1, size)
    if begin >= end:
        raise BeyondEnd(size)
    return LogRange(begin, end, size, logs.pieces(part, query.stream, begin, end))


def search(job: rows.Job, query: LogSearchQuery, user: User) -> LogSearch:
    """The lines of a log that contain a text, from an offset on.

    One answer looks at :data:`log_search.SCAN_BYTES` at most and for :data:`log_search.SCAN_S`, and says where to go
    on. Raises :class:`TooManySearches` for a second search of the same user at the same time.
    """
    _check_stream(query)
    if not 1 <= query.limit <= MOST_MATCHES:
        raise Unanswerable(_("limit must be a number of lines from 1 to {most:,}").format(most=MOST_MATCHES))
    if "\n" in query.text or not 1 <= len(query.text) <= LONGEST_TEXT:
        raise Unanswerable(_("text must be one line of 1 to {most} characters").format(most=LONGEST_TEXT))
    part = _part(job, query)
    if part is None:
        return LogSearch([], 0, 0, True)
    _must_be_here(part)
    size = logs.size(part, query.stream)
    try:
        with _turn(user), logs.Reader(part.id) as reader:
            found = log_search.scan(
                lambda begin, until: reader.read(query.stream, begin, until),
                size,
                query.text.encode(),
                min(query.offset, size),
                query.limit,
                ignore_case=query.ignore_case,
            )
    except logs.LogLost:
        raise _lost() from None
    matches = [
        LogMatch(one.offset, one.line_offset, one.line.decode(errors="replace"), one.is_cut) for one in found.found
    ]
    return LogSearch(matches, found.next_offset, size, found.is_end)


@contextmanager
def _turn(user: User) -> Iterator[None]:
    """Let each user search once at a time in this process, and so many users together: each takes a core."""
    with _turns:
        if user.pk in _searching or len(_searching) >= SEARCHES_AT_ONCE:
            raise TooManySearches(_("another search of yours, or of many others, is under way; try again in a second"))
        _searching.add(user.pk)
    try:
        yield
    finally:
        with _turns:
            _searching.discard(user.pk)


_turns = threading.Lock()
_searching: set[Any] = set()


def _must_be_here(part: rows.Part) -> None:
    removed = rows.PartLog.objects.filter(part=part, gone_at__isnull=False).values_list("gone_at", flat=True).first()
    if removed:
        detail = _("this log was removed on {day}: it was old, or its project had too many bytes of logs")
        raise LogGone(detail.format(day=removed.date().isoformat()))


def _lost() -> LogGone:
    return LogGone(_("the bytes of this log are not in the storage any more"))


def _check_stream(query: StreamOf) -> None:
    if query.stream not in {"out", "err", "both"}:
        raise Unanswerable(_("stream must be out, err or both"))
    if query.rank < 0:
        raise Unanswerable(_("rank must be 0 or more"))


def _check(query: LogQuery) -> None:
    _check_stream(query)
    if not 1 <= query.limit <= MOST_BYTES:
        raise Unanswerable(_("limit must be a number of bytes from 1 to {most:,}").format(most=MOST_BYTES))
    if query.tail is not None and not 0 <= query.tail <= MOST_LINES:
        raise Unanswerable(_("tail must be a number of lines from 0 to {most:,}").format(most=MOST_LINES))
    if (query.offset or 0) < 0:
        raise Unanswerable(_("offset must be 0 or more"))


def _part(job: rows.Job, query: StreamOf) -> rows.Part | None:
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


def plain(content: bytes) -> str:
    """The text of these bytes of a log, without colours and other sequences of a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\r(?!\n)", "", content.decode(errors="replace"))


def read(part: rows.Part, query: LogQuery) -> tuple[bytes, int, int]:
    """The bytes asked for, the offset after them, and the size of all."""
    size = logs.size(part, query.stream)
    try:
        if query.tail is not None:
            return logs.tail(part, query.stream, query.tail)[-max(query.limit, USUAL_BYTES) :], size, size
        begin = min(query.offset or 0, size)
        content = logs.read(part, query.stream, begin, query.limit)
    except logs.LogLost:
        raise _lost() from None
    return content, begin + len(content), size
