"""The routers' endpoints: a report that brings back the table of services, and who calls with a key.

A router proves itself by the secret in the file of ``YARD_ROUTER_KEY_FILE``; without one there is no router. It learns
the keys of replicas, and never those of people: it sends digests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Final

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import F, Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from agents.protocol import Phase
from controlplane.accounts import permissions
from controlplane.accounts import service as access
from controlplane.accounts.models import Token, User
from controlplane.accounts.permissions import Permit
from controlplane.functions import calls
from controlplane.services import engines, promotions, replicas
from controlplane.services.first_bytes import added, empty_counts
from controlplane.services.models import InferenceService, Replica, ServiceMinute, ServiceRevision
from controlplane.services.reconcile import weights
from router.protocol import (
    AskKey,
    CallEnds,
    Caller,
    Member,
    Report,
    Served,
    ServiceNews,
    Table,
    TakeCalls,
    Taken,
    Waits,
)

LARGEST: Final = 8 * 2**20
# A row is written for what has changed, and else so often, in seconds.
WRITTEN_S: Final = 5.0
MOST_TOKENS: Final = 2**53

View = Callable[[HttpRequest], HttpResponse]


def by_router(view: View) -> View:
    """Require the secret of the routers. It reads no cookie, hence no CSRF."""

    @csrf_exempt
    @require_POST
    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
        own = settings.ROUTER_KEY
        if not own or scheme != "Bearer" or not constant_time_compare(secret, own):
            return _refused(401, "this is not the key of a router")
        if int(request.headers.get("Content-Length") or 0) > LARGEST:
            return _refused(413, f"this may have {LARGEST} bytes at most")
        try:
            return view(request)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
            return _refused(400, f"this is no message of a router: {error}")

    return guarded


def _refused(status: int, detail: str) -> HttpResponse:
    body = msgspec.json.encode({"status": status, "detail": detail})
    return HttpResponse(body, status=status, content_type="application/problem+json")


def _answer(value: msgspec.Struct) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(value), content_type="application/json")


@by_router
def sync(request: HttpRequest) -> HttpResponse:
    """Take a report, and answer with the table."""
    report = msgspec.json.decode(request.body, type=Report)
    now = timezone.now()
    _take(report, now)
    return _answer(_table(InferenceService.objects.all(), now, calls.due_count(now)))


@by_router
def wake(request: HttpRequest) -> HttpResponse:
    """Let services have a first replica of which a router says that requests wait; answer with how they stand."""
    asked, now = msgspec.json.decode(request.body, type=Waits), timezone.now()
    rows = InferenceService.objects.filter(pk__in=asked.services)
    rows.filter(queued=0).update(queued=1)
    rows.update(asked_at=now, heard_at=now)
    for number in rows.filter(wanted=0, deleted_at=None).values_list("pk", flat=True):
        replicas.follow_one(number, now)
    return _answer(_table(rows, now))


@by_router
def take(request: HttpRequest) -> HttpResponse:
    """Give queued calls of functions to a router."""
    asked = msgspec.json.decode(request.body, type=TakeCalls)
    return _answer(Taken(calls.take(asked.most, timezone.now())))


@by_router
def results(request: HttpRequest) -> HttpResponse:
    """Take what became of calls."""
    calls.end(msgspec.json.decode(request.body, type=CallEnds).calls, timezone.now())
    return HttpResponse(b"{}", content_type="application/json")


@by_router
def keys(request: HttpRequest) -> HttpResponse:
    """Say which services may be called with the access token of a digest."""
    asked = msgspec.json.decode(request.body, type=AskKey)
    token = Token.objects.select_related("user").filter(digest=asked.digest, expires_at__gt=timezone.now()).first()
    # To call a model costs what a job costs: reading alone does not cover it.
    if token is None or not token.user.is_active or "submit" not in token.scopes:
        return _answer(Caller("", []))
    access.touch(token)
    return _answer(Caller(token.user.get_username(), sorted(callable_by(token.user))))


def callable_by(user: User) -> Iterable[int]:
    """Return the ids of the services that a user may call: those of projects in which they may submit."""
    rows = InferenceService.objects.filter(deleted_at=None)
    if not permissions.may(user, Permit.SUBMIT_ANYWHERE):
        rows = rows.filter(project__in=permissions.submittable(user))
    return rows.values_list("pk", flat=True)


def _take(report: Report, now: datetime) -> None:
    """Note what a router told. Each row is written by itself: a worker locks a service, and then its replicas."""
    rows = (
        Replica.objects.select_related("revision")
        .filter(pk__in=[news.id for news in report.members], ended_at=None)
        .in_bulk()
    )
    for news in report.members:
        row = rows.get(news.id)
        if row is None:
            continue
        is_left = row.drains_at is not None and news.draining and not news.outstanding
        load = msgspec.to_builtins(news.load) if news.load is not None else {}
        found = (news.healthy, news.outstanding, is_left, "" if news.healthy else news.fault, load)
        is_old = row.news_at is None or now - row.news_at > timedelta(seconds=WRITTEN_S)
        if is_old or found != (row.is_healthy, row.outstanding, row.is_left, row.fault, row.load):
            values = dict(zip(("is_healthy", "outstanding", "is_left", "fault", "load"), found, strict=True))
            Replica.objects.filter(pk=row.pk, ended_at=None).update(news_at=now, **values)
    tokens: Counter[int] = Counter()
    for news in report.members:
        if (row := rows.get(news.id)) is not None:
            tokens[row.revision.service_id] += news.tokens
    _count_trials(report, rows)
    for told in report.services:
        _count(told, min(tokens[told.id], MOST_TOKENS), now)


def _count_trials(report: Report, rows: Mapping[int, Replica]) -> None:
    """Count what the replicas of revisions on trial answered."""
    told = [(news, rows[news.id].revision) for news in report.members if news.id in rows and news.answers + news.errors]
    trials = promotions.on_trial() if told else {}
    for news, revision in told:
        if (trial := trials.get((revision.service_id, revision.number))) is not None:
            promotions.count(trial, news.answers, news.errors, news.first_bytes)


def _count(news: ServiceNews, tokens: int, now: datetime) -> None:
    is_asked = bool(news.requests or news.queued or news.active)
    change = {"queued": news.queued, "active": news.active, "tokens": tokens, "heard_at": now}
    row = InferenceService.objects.filter(pk=news.id)
    if not row.update(**change, **({"asked_at": now} if is_asked else {})):
        return
    if not (is_asked or news.failed or news.refused) and now.second % 10:
        return
    ready = Replica.objects.filter(revision__service=news.id, ended_at=None, is_healthy=True, drains_at=None).count()
    with transaction.atomic():
        minute, _made = ServiceMinute.objects.select_for_update().get_or_create(
            service_id=news.id,
            at=now.replace(second=0, microsecond=0),
            defaults={"first_bytes": empty_counts()},
        )
        for name in ("requests", "failed", "refused", "retried", "errors", "cold"):
            setattr(minute, name, getattr(minute, name) + getattr(news, name))
        minute.cold_ms = max(minute.cold_ms, news.cold_ms)
        minute.queued, minute.replicas = max(minute.queued, news.queued), max(minute.replicas, ready)
        minute.first_bytes = added(minute.first_bytes, news.first_bytes)
        minute.save()


def _table(rows: QuerySet[InferenceService], now: datetime, queued: int = 0) -> Table:
    """Return these services with the replicas that have a place; those that are deleted, which nobody may call, come
    first. One that has not begun to run is there too: the router's health checks see its beginning first."""
    services = list(
        rows.select_related("project", "function")
        .prefetch_related(
            Prefetch("revisions", ServiceRevision.objects.only("service", "number", "is_failed", "retry_at", "file"))
        )
        .order_by(F("deleted_at").asc(nulls_last=True), "pk")
    )
    functions = {row.pk for row in services if hasattr(row, "function")}
    open_ = list(
        Replica.objects.select_related("revision").filter(
            revision__service__in=rows, ended_at=None, stopped_at=None, job__isnull=False
        )
    )
    parts = replicas.parts_of(open_, since=Phase.ASSIGNED)
    members: dict[int, list[Member]] = {}
    for row in open_:
        part = parts.get(row.job or 0)
        if part is not None:
            members.setdefault(row.revision.service_id, []).append(
                Member(
                    row.pk,
                    row.revision.number,
                    replicas.address_of(part),
                    row.port,
                    replicas.key_of(row),
                    row.revision.health,
                    row.drains_at is not None,
                    row.port in part.listens or row.revision.service_id in functions,
                    row.revision.service_id in functions,
                )
            )
    return Table([_served(row, members.get(row.pk, []), now) for row in services], queued)


def _served(row: InferenceService, members: list[Member], now: datetime) -> Served:
    given = row.settings
    revisions = {one.number: one for one in row.revisions.all()}
    wish = replicas.wish_of(row, revisions, now)
    there = {each.revision for each in members}
    signals = {number: engines.signals_of(revisions[number].file) for number in there if number in revisions}
    return Served(
        row.pk,
        row.project.name,
        row.name,
        members,
        weights=weights(wish),
        concurrency=given["concurrency"],
        queue=given["queue"],
        wait_s=given["wait_s"],
        first_byte_s=given["first_byte_s"],
        idle_s=given["read_s"],
        body_bytes=given["body_bytes"],
        requests_per_s=given["requests_per_s"],
        signals={number: names for number, names in signals.items() if names},
        is_function=hasattr(row, "function"),
    )
