"""Traces of jobs for OpenTelemetry, from the submission to the first instruction and to the end.

Spans are made of recorded times, half a minute after an attempt began and again after it ended, so tracing costs the
scheduler and the agents nothing. A job is a trace, whose id is the job's. Below its root are, for each attempt, the
wait for it and the attempt itself, and below that its start (orders, inputs, images, until the first instruction) and
its run. ``TRACEPARENT`` of a stage's processes names the attempt's span, so that spans of their own hang below it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.conf import settings
from django.db.models import Max

from controlplane.jobs.models import Attempt, Event, Job
from controlplane.jobs.trace_ids import span_id
from controlplane.observability.models import TraceCursor
from scheduler.core.model.lifecycle import StageEvent, State

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

log = logging.getLogger(__name__)

BEGAN: Final = "started"
ENDED: Final = ("completed", StageEvent.FAIL, StageEvent.REQUEUE, StageEvent.CANCEL)
# Events get their numbers before their transactions end; none takes so long.
SETTLED_AFTER: Final = timedelta(seconds=30)
# What could not be delivered for so long is left out, and that is logged.
TOO_OLD: Final = timedelta(days=1)
MOST_EVENTS: Final = 2_000
TIMEOUT_S: Final = 10.0


def export(now: datetime) -> int:
    """Send the spans of attempts that began or ended since the last time; return how many. One worker at a time."""
    cursor, is_new = TraceCursor.objects.get_or_create(
        defaults={"event": Event.objects.aggregate(newest=Max("id"))["newest"] or 0}
    )
    fresh = Event.objects.filter(id__gt=cursor.event).order_by("id").only("id", "at", "kind", "stage", "attempt", "job")
    events = list(fresh[:MOST_EVENTS])
    unsettled = next((index for index, event in enumerate(events) if event.at > now - SETTLED_AFTER), len(events))
    events = events[:unsettled]
    if not events or is_new:
        return 0
    due = [event for event in events if event.attempt is not None and event.at > now - TOO_OLD]
    if late := sum(event.attempt is not None for event in events) - len(due):
        log.warning("%d events of attempts are older than a day and are not traced", late)
    spans = list(_spans(due))
    if spans and not _sent(spans):
        return 0
    TraceCursor.objects.filter(pk=cursor.pk).update(event=events[-1].id)
    return len(spans)


def _sent(spans: Sequence[ReadableSpan]) -> bool:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter(endpoint=f"{settings.TRACES_URL.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
    try:
        return exporter.export(spans) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()


def _spans(events: Sequence[Event]) -> Iterator[ReadableSpan]:
    began = {(event.job_id, event.stage, event.attempt) for event in events if event.kind == BEGAN}
    ended = {(event.job_id, event.stage, event.attempt) for event in events if event.kind in ENDED}
    jobs = {job for job, _, _ in began | ended}
    # A short attempt may have ended before its start was reported.
    announced = set(Event.objects.filter(job__in=jobs, kind=BEGAN).values_list("job_id", "stage", "attempt"))
    attempts = (
        Attempt.objects.filter(stage__job__in=jobs)
        .select_related("stage__job__project", "stage__job__pool")
        .order_by("stage_id", "number")
    )
    before: Attempt | None = None
    over: dict[UUID, Job] = {}
    for attempt in attempts:
        stage = attempt.stage
        key = (stage.job_id, stage.name, attempt.number)
        earlier = before if before is not None and before.stage_id == attempt.stage_id else None
        before = attempt
        is_over = key in ended and attempt.ended_at is not None
        if key in began or (is_over and key not in announced):
            yield from _beginning(attempt, earlier)
        if is_over:
            yield from _end(attempt)
            if stage.job.ended_at is not None:
                over[stage.job_id] = stage.job
    yield from (_root(job) for job in over.values())


def _beginning(attempt: Attempt, earlier: Attempt | None) -> Iterator[ReadableSpan]:
    job, stage = attempt.stage.job, attempt.stage
    waited_from = (earlier and earlier.ended_at) or stage.eligible_at or job.submitted_at
    waited_from = min(max(waited_from, job.submitted_at), attempt.created_at)
    yield _span(
        job,
        f"wait {stage.name}",
        span_id(attempt.id, "wait"),
        span_id(job.id),
        waited_from,
        attempt.created_at,
        _of(attempt),
    )
    began = attempt.started_at or attempt.ended_at or attempt.created_at
    yield _span(
        job,
        f"start {stage.name}",
        span_id(attempt.id, "start"),
        span_id(attempt.id),
        attempt.created_at,
        began,
        _of(attempt),
    )


def _end(attempt: Attempt) -> Iterator[ReadableSpan]:
    job, stage, ended_at = attempt.stage.job, attempt.stage, attempt.ended_at
    assert ended_at is not None, "only ended attempts have an end"
    said = _of(attempt) | {"switchyard.cause": attempt.cause, "switchyard.exit_code": attempt.exit_code}
    if attempt.started_at is not None:
        yield _span(
            job,
            f"run {stage.name}",
            span_id(attempt.id, "run"),
            span_id(attempt.id),
            attempt.started_at,
            ended_at,
            said,
        )
    fault = attempt.detail if attempt.cause else None
    yield _span(
        job, f"attempt {stage.name}", span_id(attempt.id), span_id(job.id), attempt.created_at, ended_at, said, fault
    )


def _root(job: Job) -> ReadableSpan:
    assert job.ended_at is not None, "only ended jobs have a root"
    fault = job.cause if job.state == State.FAILED else None
    said = {"switchyard.state": job.state, "switchyard.cause": job.cause}
    return _span(job, f"job {job.name}", span_id(job.id), None, job.submitted_at, job.ended_at, said, fault)


def _of(attempt: Attempt) -> dict[str, Any]:
    return {"switchyard.stage": attempt.stage.name, "switchyard.attempt": attempt.number}


def _span(
    job: Job,
    name: str,
    span: int,
    parent: int | None,
    since: datetime,
    until: datetime,
    said: dict[str, Any],
    fault: str | None = None,
) -> ReadableSpan:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(span: int) -> SpanContext:
        return SpanContext(job.id.int, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    place: dict[str, Any] = {
        "switchyard.job": job.number,
        "switchyard.project": job.project.name,
        "switchyard.pool": job.pool.name,
    }
    return ReadableSpan(
        name=name,
        context=context(span),
        parent=None if parent is None else context(parent),
        resource=Resource({"service.name": "switchyard"}),
        attributes={key: value for key, value in (place | said).items() if value not in (None, "")},
        status=Status(StatusCode.UNSET) if fault is None else Status(StatusCode.ERROR, fault[:300]),
        start_time=_ns(since),
        end_time=_ns(max(since, until)),
    )


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
