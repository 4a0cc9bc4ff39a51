"""Devices with their holders and newest measurements. Every signed-in user sees all devices."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import django_filters
import msgspec
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from agents import protocol
from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet import models as rows
from controlplane.jobs.models import Claim
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.refusals import Unseen
from scheduler.core.model.lifecycle import Health
from scheduler.core.model.types import Mode

# Older measurements do not describe the present.
FRESH = timedelta(seconds=60)


class Sample(msgspec.Struct, frozen=True):
    """The newest measurement of a device; ``utilisation`` is a ratio from 0 to 1."""

    utilisation: float | None
    memory_used_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    at: datetime


class Partition(msgspec.Struct, frozen=True):
    """A partition of a device: its profile, its first slot if the driver tells it, and its own uuid."""

    profile: str
    slot: int | None
    size: int
    uuid: str


class Division(msgspec.Struct, frozen=True):
    """How a device is partitioned. ``profiles`` tells how many of each profile an empty one can have; ``makes`` that
    its agent creates and removes partitions for stages, if the pool allows that (``repartition``), and ``whole`` that
    it can then also be assigned unpartitioned."""

    mode: str
    profiles: dict[str, int]
    made: list[Partition]
    makes: bool
    whole: bool


class OpenClaim(msgspec.Struct, frozen=True):
    """A share that is held now, or a ``partition`` from its first ``slot`` on. ``job`` and ``stage`` are null if you
    may not see the job."""

    job: int | None
    stage: str | None
    project: str | None
    user: str | None
    milli: int
    memory_bytes: int
    partition: str | None
    slot: int | None


class Device(msgspec.Struct, frozen=True):
    """One schedulable unit of a node. ``sharing`` tells how memory limits of stages that share it are enforced:
    ``hard`` (by hardware, for partitions), ``soft`` (the agent ends stages that exceed theirs) or ``none``; empty if
    unknown."""

    uuid: str
    node: str
    kind: str
    vendor: str
    model: str
    index: int
    memory_bytes: int
    capacity_milli: int
    claimed_milli: int
    claimed_memory_bytes: int
    mode: Mode
    health: Health
    health_reason: str
    health_reason_said: list[Clause]
    simulated: bool
    division: Division | None
    sharing: str
    sample: Sample | None
    claims: list[OpenClaim]


def newest_samples(ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Sample]:
    """The newest fresh measurement of each of these devices."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT d.id, s.utilisation, s.memory_used_bytes, s.power_w, s.temperature_c, s.at
               FROM unnest(%s::uuid[]) AS d(id) CROSS JOIN LATERAL (
                   SELECT * FROM fleet_device_sample WHERE device_id = d.id AND at > %s ORDER BY at DESC LIMIT 1) s""",
            [list(ids), timezone.now() - FRESH],
        )
        return {row[0]: Sample(*row[1:]) for row in cursor.fetchall()}


def last_measured(ids: Iterable[uuid.UUID]) -> datetime | None:
    """When any of these devices was last measured, however long ago; None if it never was, or is forgotten."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT max(s.at) FROM unnest(%s::uuid[]) AS d(id) CROSS JOIN LATERAL (
                   SELECT at FROM fleet_device_sample WHERE device_id = d.id ORDER BY at DESC LIMIT 1) s""",
            [list(ids)],
        )
        found: datetime | None = cursor.fetchone()[0]
        return found


def open_claims(ids: Iterable[uuid.UUID], user: User) -> dict[uuid.UUID, list[OpenClaim]]:
    """The open claims on these devices; claims of jobs that this user may not see have no names."""
    held: dict[uuid.UUID, list[OpenClaim]] = defaultdict(list)
    claims = Claim.objects.filter(device__in=list(ids), closed_at=None)
    seen = set(
        claims.filter(permissions.visible_jobs(user, "part__attempt__stage__job__")).values_list("id", flat=True)
    )
    columns = claims.order_by("id").values_list(
        "id", "device_id", "milli", "memory_bytes", "partition", "slots", "part__attempt__stage__job__number",
        "part__attempt__stage__name", "part__attempt__stage__job__project__name",
        "part__attempt__stage__job__user__username",
    )  # fmt: skip
    for claim_id, device_id, milli, memory_bytes, partition, slots, number, stage, project, owner in columns:
        known = claim_id in seen
        held[device_id].append(
            OpenClaim(
                job=number if known else None,
                stage=stage if known else None,
                project=project if known else None,
                user=owner if known else None,
                milli=milli,
                memory_bytes=memory_bytes,
                partition=partition or None,
                slot=slots.lower if slots else None,
            )
        )
    return held


def _division(stored: Mapping[str, Any] | None) -> Division | None:
    if stored is None:
        return None
    try:
        division = msgspec.convert(stored, protocol.Division)
    except msgspec.ValidationError:
        return None  # from before values were bounded; its node has an alarm
    made = [Partition(one.profile, one.start, one.size, one.uuid) for one in division.made]
    return Division(division.mode, division.profiles, made, division.makes, division.whole)


def shown(devices: Iterable[rows.Device], user: User) -> list[Device]:
    """These devices as this user sees them; their nodes must be loaded."""
    devices = list(devices)
    ids = [device.id for device in devices]
    samples, claims = newest_samples(ids), open_claims(ids, user)
    return [
        Device(
            uuid=device.uuid,
            node=device.node.name,
            kind=device.kind,
            vendor=device.vendor,
            model=device.model,
            index=device.index,
            memory_bytes=device.memory_bytes,
            capacity_milli=device.capacity_milli,
            claimed_milli=device.claimed_milli,
            claimed_memory_bytes=device.claimed_memory_bytes,
            mode=Mode(device.mode),
            health=Health(device.health),
            health_reason=device.health_reason,
            health_reason_said=clauses(device.health_said),
            simulated=device.simulated,
            division=_division(device.division),
            sharing=device.sharing,
            sample=samples.get(device.id),
            claims=claims.get(device.id, []),
        )
        for device in devices
    ]


def present() -> QuerySet[rows.Device]:
    """The devices that their nodes report."""
    return rows.Device.objects.filter(present=True).select_related("node")


def found(name: str) -> rows.Device:
    """The device with this uuid; raises 404."""
    device = rows.Device.objects.select_related("node").filter(uuid=name).first()
    if device is None:
        raise Unseen(_("device"))
    return device


class DeviceFilter(django_filters.FilterSet):
    """Filters of devices."""

    kind = django_filters.CharFilter(help_text="cpu, gpu, npu, ...")
    node = django_filters.CharFilter("node__name", help_text="Name of a node.")
    pool = django_filters.CharFilter("node__pools__name", help_text="Name of a pool.")
    health = django_filters.CharFilter(lookup_expr="iexact", help_text="Such as OK or UNHEALTHY.")
    q = django_filters.CharFilter("model", lookup_expr="icontains", help_text="A part of the model's name.")
