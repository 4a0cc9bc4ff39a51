"""Inference services: how each stands, its replicas and revisions, and how fast it answers against its objective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import django_filters
import msgspec
from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.clauses import in_words
from controlplane.services import autoscale, replicas
from controlplane.services.first_bytes import added
from controlplane.services.models import InferenceService as Row
from controlplane.services.models import Promotion, ServiceMinute, ServiceRevision
from controlplane.services.models import Replica as ReplicaRow
from controlplane.services.service import shown_file
from router.protocol import BOUNDS

REVISIONS = 20
REPLICAS = 50
MINUTES = 60


class ServiceTraffic(msgspec.Struct, frozen=True):
    """What the routers counted in the last five minutes; times to the first byte are upper bounds, null without any.

    ``within_slo`` is the share of the answers whose first byte came within the objective, null without one.
    """

    requests: int
    requests_per_s: float
    failed: int
    refused: int
    retried: int
    first_byte_p50_s: float | None
    first_byte_p95_s: float | None
    within_slo: float | None


class Service(msgspec.Struct, frozen=True):
    """A model that answers requests at ``address``; ``state`` is READY, UPDATING, STARTING, ASLEEP or FAILED.

    ``ready`` of ``wanted`` replicas answer; ``min`` and ``max`` bound how many are wanted. ``queued`` requests wait for
    a replica, ``active`` ones are being answered. ``fault`` says in a sentence what is wrong. ``cold_start_s`` is how
    long the newest replica took from its submission to its first answer.
    """

    id: int
    name: str
    project: str
    user: str
    address: str
    state: str
    revision: int
    former: int | None
    canary: int
    ready: int
    wanted: int
    min: int
    max: int
    queued: int
    active: int
    cold_start_s: float | None
    fault: str
    traffic: ServiceTraffic


class ServiceReplica(msgspec.Struct, frozen=True):
    """One replica: its job, revision and port, where it runs, and how it stands.

    ``state`` is PENDING, LOADING, READY, UNHEALTHY, DRAINING or ENDED. ``running`` and ``waiting`` are the requests
    that its engine says it has, ``cache`` the used share of its cache of keys and values; null where it does not say.
    """

    id: int
    revision: int
    job: int | None
    node: str
    port: int
    state: str
    outstanding: int
    running: int | None
    waiting: int | None
    cache: float | None
    made_at: datetime
    ready_at: datetime | None
    ended_at: datetime | None
    fault: str


class ServiceRevisionShown(msgspec.Struct, frozen=True):
    """A version of what the replicas run. ``ready_at`` is when a replica of it first answered.

    ``model_job``, ``model`` and ``digest`` say whose output a promoted model is: null and empty for one of the file.
    """

    number: int
    made_by: str
    made_at: datetime
    ready_at: datetime | None
    failed: bool
    fault: str
    model_job: int | None
    model: str
    digest: str


class ServicePromotion(msgspec.Struct, frozen=True):
    """The promotion of the model of a job's stage: its gate, what came of it, and who owned the job.

    ``state`` is WAITING, TRIAL, PROMOTED, REFUSED, ROLLED_BACK or REPLACED, and ``detail`` says why. ``gate`` is what
    had to hold of ``metric``, ``value`` what the stage had reported, null if that was no number. ``revision`` is the
    one that it made, ``former`` the one that served before. ``answers`` and ``errors`` are those of the trial.
    """

    id: int
    service: str
    project: str
    job: int
    stage: str
    model: str
    user: str
    state: str
    metric: str
    value: float | None
    gate: str
    canary: int | None
    detail: str
    revision: int | None
    former: int | None
    answers: int
    errors: int
    made_at: datetime
    ended_at: datetime | None


class ServiceMinuteShown(msgspec.Struct, frozen=True):
    """What was counted in one minute."""

    at: datetime
    requests: int
    failed: int
    refused: int
    queued: int
    replicas: int
    first_byte_p95_s: float | None


class ServiceDetail(msgspec.Struct, frozen=True):
    """A service with its file, its replicas (open ones and the newest that ended), revisions, the newest promotions
    and its last hour."""

    service: Service
    file: dict[str, Any]
    settings: dict[str, Any]
    replicas: list[ServiceReplica]
    revisions: list[ServiceRevisionShown]
    promotions: list[ServicePromotion]
    minutes: list[ServiceMinuteShown]


class ServiceFilter(django_filters.FilterSet):
    """Filters of services."""

    project = django_filters.CharFilter("project__name", help_text="Name of a project.")
    name = django_filters.CharFilter("name", help_text="Name of a service.")
    user = django_filters.CharFilter("user__username", help_text="Name of its owner.")


def visible(user: User) -> QuerySet[Row]:
    """The services that this user may see: their own, and those of their projects; functions are listed apart."""
    rows = Row.objects.select_related("project", "user").filter(deleted_at=None, function__isnull=True)
    if permissions.may(user, Permit.SEE_JOBS):
        return rows
    return rows.filter(Q(user=user) | Q(project__in=permissions.joined(user)))


def shown(rows: Iterable[Row], user: User) -> list[Service]:
    """These services as they stand."""
    rows = list(rows)
    open_: dict[int, list[ReplicaRow]] = {row.pk: [] for row in rows}
    for one in ReplicaRow.objects.select_related("revision").filter(revision__service__in=rows, ended_at=None):
        open_[one.revision.service_id].append(one)
    newest = (
        ReplicaRow.objects.select_related("revision")
        .filter(revision__service__in=rows, ready_at__isnull=False)
        .order_by("revision__service_id", "-ready_at")
        .distinct("revision__service_id")
    )
    cold = {one.revision.service_id: (one.ready_at - one.made_at).total_seconds() for one in newest if one.ready_at}
    failed = set(ServiceRevision.objects.filter(service__in=rows, is_failed=True).values_list("service_id", "number"))
    since = timezone.now() - timedelta(minutes=5)
    minutes: dict[int, list[ServiceMinute]] = {row.pk: [] for row in rows}
    for minute in ServiceMinute.objects.filter(service__in=rows, at__gte=since):
        minutes[minute.service_id].append(minute)
    return [
        _one(row, open_[row.pk], cold.get(row.pk), (row.pk, row.revision) in failed, minutes[row.pk]) for row in rows
    ]


def _one(
    row: Row, open_: Sequence[ReplicaRow], cold_s: float | None, is_failed: bool, minutes: Sequence[ServiceMinute]
) -> Service:
    ready = [one for one in open_ if one.ready_at is not None and one.is_healthy and one.drains_at is None]
    others = [one for one in open_ if one.revision.number != row.revision]
    given = row.settings
    if is_failed:
        state = "FAILED"
    elif not row.wanted and not open_:
        state = "ASLEEP"
    elif not ready:
        state = "STARTING"
    elif others and given["canary"] == 100:
        state = "UPDATING"
    else:
        state = "READY" if len(ready) >= row.wanted else "STARTING"
    return Service(
        id=row.pk,
        name=row.name,
        project=row.project.name,
        user=row.user.get_username(),
        address=f"{settings.ROUTER_URL}/s/{row.project.name}/{row.name}/v1",
        state=state,
        revision=row.revision,
        former=row.former,
        canary=given["canary"],
        ready=len(ready),
        wanted=row.wanted,
        min=given["min"],
        max=given["max"],
        queued=row.queued,
        active=row.active,
        cold_start_s=round(cold_s, 3) if cold_s is not None else None,
        fault=row.fault,
        traffic=_traffic(minutes, given["slo_first_byte_s"]),
    )


def _traffic(minutes: Sequence[ServiceMinute], objective_s: float | None) -> ServiceTraffic:
    counts = added(*(minute.first_bytes for minute in minutes))
    requests = sum(minute.requests for minute in minutes)
    answered = sum(counts)
    within = None
    if objective_s is not None and answered:
        within = sum(count for bound, count in zip(BOUNDS, counts, strict=False) if bound <= objective_s) / answered
    return ServiceTraffic(
        requests=requests,
        requests_per_s=round(requests / 300, 3),
        failed=sum(minute.failed for minute in minutes),
        refused=sum(minute.refused for minute in minutes),
        retried=sum(minute.retried for minute in minutes),
        first_byte_p50_s=finite(autoscale.quantile(counts, 0.5)),
        first_byte_p95_s=finite(autoscale.quantile(counts, 0.95)),
        within_slo=round(within, 4) if within is not None else None,
    )


def finite(bound: float | None) -> float | None:
    """A bound, or twice the largest where there is none."""
    return bound if bound is None or bound <= BOUNDS[-1] else 2 * BOUNDS[-1]


def detail(row: Row, user: User) -> ServiceDetail:
    """This service with its replicas, revisions and last hour."""
    revisions = list(row.revisions.all()[:REVISIONS])
    current = row.revisions.get(number=row.revision)
    since = timezone.now() - timedelta(minutes=MINUTES)
    return ServiceDetail(
        shown([row], user)[0],
        shown_file(current),
        row.settings,
        replicas_of(row),
        [
            ServiceRevisionShown(
                one.number,
                one.made_by,
                one.made_at,
                one.ready_at,
                one.is_failed,
                one.fault,
                one.model_job,
                f"{one.model['stage']}/{one.model['output']}" if one.model else "",
                one.model.get("digest", ""),
            )
            for one in revisions
        ],
        [promotion(one) for one in row.promotions.select_related("project")[:REVISIONS]],
        [
            ServiceMinuteShown(
                one.at,
                one.requests,
                one.failed,
                one.refused,
                one.queued,
                one.replicas,
                finite(autoscale.quantile(one.first_bytes, 0.95)),
            )
            for one in row.minutes.filter(at__gte=since)
        ],
    )


def promotion(row: Promotion) -> ServicePromotion:
    """A promotion, its sentence in the language of the reader."""
    asked = row.asked
    return ServicePromotion(
        id=row.pk,
        service=row.name,
        project=row.project.name,
        job=row.job,
        stage=row.stage,
        model=f"{asked['from']}/{asked['output']}",
        user=row.user,
        state=row.state,
        metric=asked["metric"],
        value=row.value,
        gate=gate_of(asked),
        canary=round(asked["canary"]["percent"]) if asked.get("canary") else None,
        detail=in_words(row.detail, row.said),
        revision=row.revision,
        former=row.former,
        answers=row.answers,
        errors=row.errors,
        made_at=row.made_at,
        ended_at=row.ended_at,
    )


def promotions_of(job: int) -> list[ServicePromotion]:
    """The newest promotions of the stages of a job that the reader may see."""
    return [promotion(one) for one in Promotion.objects.select_related("project").filter(job=job)[:REVISIONS]]


def gate_of(asked: Mapping[str, Any]) -> str:
    """What has to hold of a metric, as mathematicians write it."""
    bounds = [f"≤ {asked['at_most']:g}"] if asked["at_most"] is not None else []
    bounds += [f"≥ {asked['at_least']:g}"] if asked["at_least"] is not None else []
    if asked["better_than_serving"]:
        bounds.append(_("better than what serves"))
    return ", ".join(bounds)


def replicas_of(row: Row) -> list[ServiceReplica]:
    """The open replicas of a service, and the newest that ended."""
    rows = list(
        ReplicaRow.objects.select_related("revision")
        .filter(revision__service=row)
        .order_by(F("ended_at").desc(nulls_first=True), "-id")[:REPLICAS]
    )
    parts = replicas.parts_of([one for one in rows if one.ended_at is None])
    nodes = {number: part.node.name for number, part in parts.items()}
    return [_replica(one, nodes.get(one.job or 0, "")) for one in rows]


def _replica(row: ReplicaRow, node: str) -> ServiceReplica:
    if row.ended_at is not None:
        state = "ENDED"
    elif row.drains_at is not None:
        state = "DRAINING"
    elif row.running_at is None:
        state = "PENDING"
    elif row.ready_at is None:
        state = "LOADING"
    else:
        state = "READY" if row.is_healthy else "UNHEALTHY"
    return ServiceReplica(
        row.pk,
        row.revision.number,
        row.job,
        node,
        row.port,
        state,
        row.outstanding,
        row.load.get("running"),
        row.load.get("waiting"),
        row.load.get("cache"),
        row.made_at,
        row.ready_at,
        row.ended_at,
        row.fault,
    )
