"""Functions: how each stands and answers, its replicas and minutes, and the calls in its queue."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import django_filters
import msgspec
from django.conf import settings
from django.db.models import BigIntegerField, ExpressionWrapper, F, Max, Q, QuerySet, Sum
from django.utils import timezone

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.functions import calls
from controlplane.functions.models import DeployedFunction as Row
from controlplane.functions.models import FunctionCall as CallRow
from controlplane.jobs import masked
from controlplane.queries import services
from controlplane.queries.cursor import Page
from controlplane.queries.services import ServiceReplica, ServiceTraffic
from controlplane.services import autoscale
from controlplane.services.models import InferenceService, ServiceMinute

MINUTES = 60


class FunctionQueue(msgspec.Struct, frozen=True):
    """How many calls of a function wait in its queue, run, are done and were given up."""

    queued: int
    running: int
    done: int
    dead: int


class Function(msgspec.Struct, frozen=True):
    """A function that answers POST at ``address``; ``state`` is READY, UPDATING, STARTING, ASLEEP or FAILED.

    ``ready`` of ``wanted`` replicas answer; ``min`` and ``max`` bound how many are wanted, each of which runs
    ``concurrency`` times ``batch`` calls at once. ``errors`` of the last five minutes are calls whose handler failed,
    ``cold`` those that waited for a first replica, the slowest of the last hour ``cold_start_s``. ``fault`` says in a
    sentence what is wrong.
    """

    id: int
    name: str
    project: str
    user: str
    address: str
    state: str
    file: str
    revision: int
    ready: int
    wanted: int
    min: int
    max: int
    concurrency: int
    batch: int
    max_wait_ms: int
    timeout_s: int
    tries: int
    idle_s: int
    waiting: int
    active: int
    errors: int
    cold: int
    cold_start_s: float | None
    fault: str
    traffic: ServiceTraffic
    queue: FunctionQueue


class FunctionMinute(msgspec.Struct, frozen=True):
    """What was counted of a function in one minute."""

    at: datetime
    requests: int
    errors: int
    failed: int
    refused: int
    cold: int
    cold_start_s: float | None
    replicas: int
    first_byte_p95_s: float | None


class FunctionDetail(msgspec.Struct, frozen=True):
    """A function with its code, if that was sent as text and the reader is a member of its project, the job file of its
    replicas, its replicas and last hour."""

    function: Function
    code: str
    template: dict[str, Any]
    replicas: list[ServiceReplica]
    minutes: list[FunctionMinute]


class FunctionCall(msgspec.Struct, frozen=True):
    """A queued call; ``state`` is QUEUED, RUNNING, DONE or DEAD.

    ``tries`` ran and failed, the last with ``status`` and ``fault``. ``event`` and ``result`` are for members of the
    project alone; others find null. One that is QUEUED is due at ``due_at``.
    """

    id: int
    key: str
    user: str
    state: str
    tries: int
    status: int | None
    event: Any
    result: Any
    fault: str
    made_at: datetime
    due_at: datetime
    taken_at: datetime | None
    ended_at: datetime | None


class FunctionFilter(django_filters.FilterSet):
    """Filters of functions."""

    project = django_filters.CharFilter("service__project__name", help_text="Name of a project.")
    name = django_filters.CharFilter("service__name", help_text="Name of a function.")
    user = django_filters.CharFilter("service__user__username", help_text="Name of its owner.")


class FunctionCallPage(Page[FunctionCall], frozen=True):
    """One page of the queued calls of a function, newest first."""


def visible(user: User) -> QuerySet[Row]:
    """The functions that this user may see, with their ``number``: their own, and those of their projects."""
    number = ExpressionWrapper(F("service_id"), BigIntegerField())
    rows = Row.objects.select_related("service__project", "service__user").annotate(number=number)
    rows = rows.filter(service__deleted_at=None)
    if permissions.may(user, Permit.SEE_JOBS):
        return rows
    return rows.filter(Q(service__user=user) | Q(service__project__in=permissions.joined(user)))


def may_call(user: User, row: Row) -> bool:
    """Whether this user may call a function: who may submit to its project."""
    return permissions.submittable(user).filter(pk=row.service.project_id).exists()


def is_told(user: User, row: Row) -> bool:
    """Whether this user may read code, events and results: a member of the project, or the owner."""
    return row.service.user_id == user.pk or row.service.project_id in permissions.joined(user)


def shown(rows: Iterable[Row], user: User) -> list[Function]:
    """These functions as they stand."""
    rows = list(rows)
    found = {one.id: one for one in services.shown([row.service for row in rows], user)}
    queues = calls.counts(row.pk for row in rows)
    now = timezone.now()
    minutes = ServiceMinute.objects.filter(service__in=[row.pk for row in rows]).order_by()
    recent = {
        number: (errors, cold)
        for number, errors, cold in minutes.filter(at__gte=now - timedelta(minutes=5))
        .values_list("service_id")
        .annotate(Sum("errors"), Sum("cold"))
    }
    colds = dict(minutes.filter(at__gte=now - timedelta(hours=1)).values_list("service_id").annotate(Max("cold_ms")))
    return [
        _one(row, found[row.pk], queues.get(row.pk, {}), recent.get(row.pk, (0, 0)), colds.get(row.pk)) for row in rows
    ]


def _one(
    row: Row, one: services.Service, queue: dict[str, int], recent: tuple[int, int], cold_ms: int | None
) -> Function:
    numbers = {key: row.options[key] for key in ("concurrency", "batch", "max_wait_ms", "timeout_s", "tries", "idle_s")}
    return Function(
        id=row.pk,
        name=one.name,
        project=one.project,
        user=one.user,
        address=f"{settings.ROUTER_URL}/f/{one.project}/{one.name}",
        state=one.state,
        file=row.file,
        revision=one.revision,
        ready=one.ready,
        wanted=one.wanted,
        min=one.min,
        max=one.max,
        waiting=one.queued,
        active=one.active,
        errors=recent[0],
        cold=recent[1],
        cold_start_s=cold_ms / 1000 if cold_ms else None,
        fault=one.fault,
        traffic=one.traffic,
        queue=FunctionQueue(*(queue.get(state, 0) for state in ("QUEUED", "RUNNING", "DONE", "DEAD"))),
        **numbers,
    )


def detail(row: Row, user: User) -> FunctionDetail:
    """This function with its code, replicas and last hour."""
    service: InferenceService = row.service
    since = timezone.now() - timedelta(minutes=MINUTES)
    template = masked.shown(row.options.get("template") or {})
    return FunctionDetail(
        shown([row], user)[0],
        row.code if is_told(user, row) else "",
        template,
        services.replicas_of(service),
        [
            FunctionMinute(
                one.at,
                one.requests,
                one.errors,
                one.failed,
                one.refused,
                one.cold,
                one.cold_ms / 1000 if one.cold_ms else None,
                one.replicas,
                services.finite(autoscale.quantile(one.first_bytes, 0.95)),
            )
            for one in service.minutes.filter(at__gte=since)
        ],
    )


def shown_calls(rows: Iterable[CallRow], row: Row, user: User) -> list[FunctionCall]:
    """These calls of a function; what they say is for members of its project alone."""
    is_member = is_told(user, row)
    return [
        FunctionCall(
            id=one.pk,
            key=one.key,
            user=one.user.get_username() if one.user else "",
            state=one.state,
            tries=one.tries,
            status=one.status,
            event=_parsed(one.event) if is_member else None,
            result=_parsed(one.result) if is_member else None,
            fault=one.fault if is_member else "",
            made_at=one.made_at,
            due_at=one.due_at,
            taken_at=one.taken_at,
            ended_at=one.ended_at,
        )
        for one in rows
    ]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text
