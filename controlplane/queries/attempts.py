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
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.devices import FRESH
from controlplane.queries.expected_end import expected_end, going
from controlplane.queries.held_idle import held_idle
from controlplane.queries.job_rows import Placed, placed
from controlplane.queries.refusals import Unseen


class ReleasedDevice(Released, frozen=True, omit_defaults=False):
    """The memory of a device that a part held: in use before it started, at most while it ran, and ``after_s`` after
    its last process was gone; null where that was not measured.

    ``is_back`` tells whether it gave back what it had taken; null where that cannot be told, for others use it too.
    """


class AttemptPart(msgspec.Struct, frozen=True):
    """The piece of an attempt on one node.

    ``share`` is what its newest revision, ``spec_rev``, gives the running processes: only what differs from how it
    started. The agent has applied the revision ``seen_rev``; ``notes`` say what of it, or of its start, could not be.
    ``released`` tells of each accelerator whose memory is measured what the part left of it, once it ended.
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
    """One try at running a stage. ``price_device_s`` is the work lost where it was evicted. ``why_here_said`` and
    ``detail_said`` are why it ran where it did and how it ended, in clauses; empty for words of somebody's own.

    ``expected_end_at`` is when it will probably end while it runs, ``overdue_since_at`` when it should have, where that
    time has passed; both are null where nobody can tell.
    ``energy_j`` is what its devices drew, by kind, so far or until its end, without the kinds whose devices do not tell
    their watts; ``energy_measured_s`` is for how long that was measured (of several nodes the least), known at its end.
    ``idle_devices`` are the accelerators that it has held for long and hardly used, by their uuids.
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
    """A resumable point that a stage confirmed. ``took_s`` is how long saving it held up the stage, in seconds, where
    it told; ``on_stop`` says that its attempt had been asked to stop then."""

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
    """The attempts of this job, each with its ``place``: one number by which they are in order."""
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
    """What the devices of each of these parts drew, as of its newest measurement."""
    if not parts:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT p.id, s.energy_j FROM unnest(%s::uuid[]) AS p(id) CROSS JOIN LATERAL (
                   SELECT energy_j FROM fleet_part_sample WHERE part_id = p.id AND at > %s
                   ORDER BY at DESC LIMIT 1) s WHERE s.energy_j IS NOT NULL""",
            [parts, timezone.now() - FRESH],
        )
        return {part: parsed(told) for part, told in cursor.fetchall()}


def _energy(
    claims: list[rows.Claim], parts: list[rows.Part], live: Mapping[uuid.UUID, dict[str, float]]
) -> tuple[dict[str, float], float | None]:
    """What the parts of an attempt drew; a kind that one of them holds and does not tell is left out."""
    held: dict[uuid.UUID, set[str]] = defaultdict(set)
    for claim in claims:
        held[claim.part_id].add(claim.device.kind)
    told = {
        part.id: part.exit.get("energy_j", {}) if part.exit is not None else live.get(part.id, {}) for part in parts
    }
    kinds = {kind for found in told.values() for kind in found}
    whole = {kind for kind in kinds if all(kind in told[part.id] for part in parts if kind in held[part.id])}
    drawn = {kind: round(sum(found.get(kind, 0.0) for found in told.values()), 1) for kind in sorted(whole)}
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
        placed=placed(claims),
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
