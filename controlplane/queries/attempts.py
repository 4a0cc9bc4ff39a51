"""Attempts, checkpoints and events of a job."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection
from django.db.models import BigIntegerField, ExpressionWrapper, F, QuerySet, Value
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import Phase, Released
from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet.world import parsed
from controlplane.jobs import models as rows
from controlplane.jobs.held_idle import held_idle
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.devices import FRESH
from controlplane.queries.expected_end import expected_end, going
from controlplane.queries.job_rows import Placed, placed
from controlplane.queries.refusals import Unseen


class ReleasedDevice(Released, frozen=True, omit_defaults=False):
    """The memory of a device that a part held: in use before the part started, its maximum while the part ran, and
    ``after_s`` seconds after the last process ended; null if not measured.

    ``is_back`` tells whether the memory of the part was freed; null if unknown because others use the device too.
    """


class AttemptPart(msgspec.Struct, frozen=True):
    """The piece of an attempt on one node.

    ``share`` is the change of its resources since its start, by the newest revision ``spec_rev``. The agent has applied
    the revision ``seen_rev``; ``notes`` say which of these settings, or of those at the start, could not be applied.
    ``released`` tells for each accelerator with measured memory what the part left allocated when it ended.
    """

    rank: int
    node: str
    phase: str
    substate: str
    substate_said: list[Clause]
    pid: int | None
    spec_rev: int
    seen_rev: int
    share: dict[str, Any]
    notes: list[str]
    notes_said: list[list[Clause]]
    released: list[ReleasedDevice]


class Attempt(msgspec.Struct, frozen=True):
    """One try at running a stage. ``price_device_s`` is the work lost if it was evicted. ``why_here_said`` and
    ``detail_said`` are the reason for its placement and for its end, in clauses; empty for free text.

    ``expected_end_at`` is when a running attempt will probably end, and ``overdue_since_at`` when it should have ended
    if that time has passed; both are null if unknown. ``energy_j`` is the energy of its devices by kind, so far or
    until its end, without kinds whose devices do not measure power; ``energy_measured_s`` is for how long it was
    measured (on several nodes the shortest), known at its end. ``idle_devices`` are the uuids of the accelerators that
    it has held for long and hardly used.
    """

    id: uuid.UUID
    stage: str
    number: int
    alternative: int
    why_here: str
    why_here_said: list[Clause]
    placed: list[Placed]
    created_at: datetime
    started_at: datetime | None
    stop_why: str
    stop_at: datetime | None
    contact_lost_at: datetime | None
    ended_at: datetime | None
    expected_end_at: datetime | None
    overdue_since_at: datetime | None
    cause: str
    detail: str
    detail_said: list[Clause]
    exit_code: int | None
    signal: int | None
    price_device_s: float | None
    energy_j: dict[str, float]
    energy_measured_s: float | None
    idle_devices: list[str]
    parts: list[AttemptPart]


class AttemptPage(msgspec.Struct, frozen=True):
    """One page of a job's attempts, in the order of its stages."""

    results: list[Attempt]
    next: str | None
    previous: str | None


class Checkpoint(msgspec.Struct, frozen=True):
    """A resumable point that a stage confirmed. ``took_s`` is how long saving blocked the stage, in seconds, if it
    reported that; ``on_stop`` tells that its attempt had been asked to stop before."""

    stage: str
    attempt: int
    step: int
    path: str
    at: datetime
    took_s: float | None
    on_stop: bool


class CheckpointPage(msgspec.Struct, frozen=True):
    """One page of a job's checkpoints, newest first."""

    results: list[Checkpoint]
    next: str | None
    previous: str | None


def of_job(job: rows.Job) -> QuerySet[Any]:
    """The attempts of this job, annotated with ``place``: one number that orders them by stage and attempt."""
    place = F("stage__index") * Value(2**32, BigIntegerField()) + F("number")
    attempts = rows.Attempt.objects.filter(stage__job=job).select_related("stage")
    return attempts.annotate(place=ExpressionWrapper(place, BigIntegerField()))


def checkpoints_of(job: rows.Job) -> QuerySet[rows.Checkpoint]:
    """The resumable points that the stages of this job confirmed."""
    return rows.Checkpoint.objects.filter(stage__job=job).select_related("stage", "attempt")


def shown(attempts: Iterable[rows.Attempt]) -> list[Attempt]:
    """These attempts, in the same order; their stages must be loaded."""
    attempts = list(attempts)
    ids = [attempt.id for attempt in attempts]
    claims: dict[uuid.UUID, list[rows.Claim]] = defaultdict(list)
    held = rows.Claim.objects.filter(part__attempt__in=ids).select_related("part", "part__node", "device")
    for claim in held.order_by("part__rank", "device__kind", "device__index"):
        claims[claim.part.attempt_id].append(claim)
    parts: dict[uuid.UUID, list[rows.Part]] = defaultdict(list)
    for part in rows.Part.objects.filter(attempt__in=ids).select_related("node").order_by("rank"):
        parts[part.attempt_id].append(part)
    live = [part.id for attempt in attempts if attempt.ended_at is None for part in parts[attempt.id]]
    drawn = newest_energy(live)
    held_now = {claim.device_id for each in claims.values() for claim in each if claim.closed_at is None}
    idle = held_idle(held_now) if held_now else set()
    now = timezone.now()
    return [_attempt(each, claims[each.id], parts[each.id], drawn, idle, now) for each in attempts]


def found(user: User, name: uuid.UUID) -> rows.Attempt:
    """The attempt with this id, if this user may see its job; raises 404 otherwise."""
    visible = rows.Attempt.objects.filter(permissions.visible_jobs(user, "stage__job__"))
    attempt = visible.select_related("stage__job__project", "stage__job__user").filter(id=name).first()
    if attempt is None:
        raise Unseen(_("attempt {name}").format(name=name))
    return attempt


def newest_energy(parts: list[uuid.UUID]) -> dict[uuid.UUID, dict[str, float]]:
    """The energy of the devices of each of these parts in joules by kind, as of its newest measurement."""
    if not parts:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT p.id, s.energy_j FROM unnest(%s::uuid[]) AS p(id) CROSS JOIN LATERAL (
                   SELECT energy_j FROM fleet_part_sample WHERE part_id = p.id AND at > %s
                   ORDER BY at DESC LIMIT 1) s WHERE s.energy_j IS NOT NULL""",
            [parts, timezone.now() - FRESH],
        )
        return {part: parsed(energy) for part, energy in cursor.fetchall()}


def _energy(
    claims: list[rows.Claim], parts: list[rows.Part], live: Mapping[uuid.UUID, dict[str, float]]
) -> tuple[dict[str, float], float | None]:
    """The energy of the parts of an attempt, without kinds that one of them holds but does not measure, and the seconds
    for which it was measured."""
    held: dict[uuid.UUID, set[str]] = defaultdict(set)
    for claim in claims:
        held[claim.part_id].add(claim.device.kind)
    by_part = {
        part.id: part.exit.get("energy_j", {}) if part.exit is not None else live.get(part.id, {}) for part in parts
    }
    kinds = {kind for found in by_part.values() for kind in found}
    whole = {kind for kind in kinds if all(kind in by_part[part.id] for part in parts if kind in held[part.id])}
    drawn = {kind: round(sum(found.get(kind, 0.0) for found in by_part.values()), 1) for kind in sorted(whole)}
    if not drawn or any(part.exit is None for part in parts):
        return drawn, None
    return drawn, min((part.exit or {}).get("energy_measured_s", 0.0) for part in parts)


def _part(part: rows.Part) -> AttemptPart:
    return AttemptPart(
        rank=part.rank,
        node=part.node.name,
        phase=Phase(part.phase).name,
        substate=part.substate,
        substate_said=clauses(part.substate_said),
        pid=part.pid,
        spec_rev=part.spec_rev,
        seen_rev=part.seen_rev,
        share=part.share or {},
        notes=part.notes,
        notes_said=[clauses(said) for said in part.notes_said],
        released=msgspec.convert((part.exit or {}).get("released", []), list[ReleasedDevice]),
    )


def _attempt(
    attempt: rows.Attempt,
    claims: list[rows.Claim],
    parts: list[rows.Part],
    drawn: Mapping[uuid.UUID, dict[str, float]],
    idle: set[uuid.UUID],
    now: datetime,
) -> Attempt:
    energy_j, energy_measured_s = _energy(claims, parts, drawn)
    ending = expected_end(going(attempt), now)
    unused = [claim.device.uuid for claim in claims if claim.closed_at is None and claim.device_id in idle]
    return Attempt(
        id=attempt.id,
        stage=attempt.stage.name,
        number=attempt.number,
        alternative=attempt.alternative,
        why_here=attempt.why_here,
        why_here_said=clauses(attempt.said.get("why_here")),
        placed=placed(claims) or [Placed(part.node.name, part.rank, []) for part in parts if part.node.is_site],
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        stop_why=attempt.stop_why,
        stop_at=attempt.stop_at,
        contact_lost_at=attempt.contact_lost_at,
        ended_at=attempt.ended_at,
        expected_end_at=ending.expected_at,
        overdue_since_at=ending.overdue_since_at,
        cause=attempt.cause,
        detail=attempt.detail,
        detail_said=clauses(attempt.said.get("detail")),
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        price_device_s=attempt.price,
        energy_j=energy_j,
        energy_measured_s=energy_measured_s,
        idle_devices=unused,
        parts=[_part(part) for part in parts],
    )


def checkpoints(points: Iterable[rows.Checkpoint]) -> list[Checkpoint]:
    """These checkpoints; their stages and attempts must be loaded."""
    return [_checkpoint(point) for point in points]


def _checkpoint(point: rows.Checkpoint) -> Checkpoint:
    attempt = point.attempt
    on_stop = attempt.stop_at is not None and point.at >= attempt.stop_at
    return Checkpoint(point.stage.name, attempt.number, point.step, point.path, point.at, point.took_s, on_stop)
