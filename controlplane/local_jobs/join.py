"""Takes jobs that were submitted on a node into the record, each once, with the times at which they really ran.

A node offers a job until it is answered with the job's number. The ids of all rows were chosen on the node, so an offer
that comes twice, late or after a restore finds the row that the first one made, or makes the same row again. What
cannot be taken stays on its node and is a condition for people; it is never dropped.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.db import DataError, IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import LOCAL_SPEC_BYTES, Here, LocalAnswer, LocalOffer, Phase, local_ids
from agents.protocol import LocalJob as Offered
from controlplane import changes
from controlplane.clauses import Told, clause, joined, of_error, told, verbatim
from controlplane.fleet import alarms
from controlplane.fleet.models import Device, Node
from controlplane.jobs import record, service
from controlplane.jobs.models import Attempt, Job, Part, Stage
from controlplane.jobs.record import LONGEST_AGE_S
from controlplane.jobs.section import FieldError
from controlplane.jobs.spec import InvalidSpec
from controlplane.local_jobs.models import LocalGrant, LocalJob
from scheduler.core.model.lifecycle import Cause

log = logging.getLogger(__name__)

# The keys of a job file that a local job may have; others are not read.
_KEYS: Final = ("name", "run", "command", "env", "cpus", "memory", "devices", "time_limit")
# So many whole jobs of a report are taken; the others are offered again.
MOST_AT_ONCE: Final = 16
# What a job file may come to that its account wrote: its fault is its own, and never that of the node's report.
_OWN_FAULTS: Final = (DataError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
# Characters of a reason that is told to the node.
_LONGEST: Final = 300


class NotJoined(Exception):
    """The job stays on its node for now; ``why`` is for people. ``is_for_people``: it needs one of them."""

    def __init__(self, why: Told, *, is_for_people: bool) -> None:
        super().__init__(why.text)
        self.why, self.is_for_people = why, is_for_people


@dataclass(frozen=True, slots=True)
class _Times:
    accepted_at: datetime
    began_at: datetime
    ended_at: datetime | None
    at: datetime


def join(node_id: uuid.UUID, offers: Sequence[LocalOffer]) -> list[LocalAnswer]:
    """Take what a node offers into the record, and return the answers. The node's report was taken before."""
    if not offers:
        return []
    node = Node.objects.get(id=node_id)
    known = _known(node, [offer.id for offer in offers])
    left = MOST_AT_ONCE
    answers: list[LocalAnswer] = []
    faults: list[Told] = []
    for offer in offers:
        if offer.id in known:
            answers.append(LocalAnswer(offer.id, known[offer.id]))
        elif offer.job is None:
            answers.append(LocalAnswer(offer.id, wants=True))
        elif left:
            left -= 1
            try:
                answers.append(LocalAnswer(offer.id, _joined(node, offer.id, offer.job)))
            except NotJoined as error:
                answers.append(LocalAnswer(offer.id, why=error.why.text[:_LONGEST]))
                if error.is_for_people and error.why not in faults:
                    faults.append(error.why)
    if any(offer.job is not None for offer in offers):
        alarms.raised(alarms.LOCAL, {node.name: joined(faults[:3], "Also")} if faults else {}, about=node.name)
    return answers


def _known(node: Node, ids: Collection[str]) -> dict[str, int]:
    found = LocalJob.objects.filter(id__in=ids, node=node).values_list("id", "number")
    return {str(one): number for one, number in found}


def _joined(node: Node, job_id: str, offered: Offered) -> int:
    """Take one job into the record, and return its number. Raises NotJoined."""
    grant = LocalGrant.objects.filter(node=node, project__name=offered.project).select_related("project", "user")
    given = grant.first()
    if given is None or not given.user.is_active:
        code = "LocalUngranted" if given is None else "LocalUserGone"
        why = told(clause(code, node=node.name, project=offered.project, account=offered.account))
        raise NotJoined(why, is_for_people=True)
    try:
        if len(msgspec.json.encode(offered.spec)) > LOCAL_SPEC_BYTES:
            raise ValueError(_("its job file is too long"))
        with transaction.atomic():
            number = _write(node, job_id, offered, given)
    except IntegrityError:
        if known := _known(node, [job_id]):
            return known[job_id]  # another connection of the node was faster
        devices = [claim.uuid for claim in offered.claims]
        _give_way(node, devices)
        raise NotJoined(told(clause("LocalDevicesHeld")), is_for_people=False) from None
    except InvalidSpec as error:
        fault = "; ".join(f"{each.pointer}: {each.detail}" for each in error.errors[:3])[:_LONGEST]
        why = told(clause("LocalRefused", node=node.name, project=offered.project, fault=verbatim(fault)))
        raise NotJoined(why, is_for_people=True) from None
    except _OWN_FAULTS as error:
        log.warning("a local job of node %s cannot be taken: %r", node.name, error)
        why = told(clause("LocalRefused", node=node.name, project=offered.project, fault=of_error(error)))
        raise NotJoined(why, is_for_people=True) from None
    return number


def _write(node: Node, job_id: str, offered: Offered, grant: LocalGrant) -> int:
    ids, times = local_ids(job_id), _times(offered)
    job, stage = _submitted(node, job_id, offered, grant, times)
    LocalJob.objects.create(
        id=job_id, job=job, number=job.number, node=node, account=offered.account, accepted_at=times.accepted_at,
        joined_at=times.at,
    )  # fmt: skip
    said = told(clause("LocalJoined", stage=stage.name, node=node.name, account=offered.account))
    if not offered.claims:
        # It was cancelled before it got a device.
        service.cancel(job, offered.account, told(clause("LocalCancelled", node=node.name)))
        return job.number
    service.touch_nodes([node.id])
    service.place_elsewhere(
        job,
        stage,
        service.Elsewhere(
            node.id, uuid.UUID(ids.attempt), uuid.UUID(ids.part), times.began_at, times.ended_at,
            _claims(node, offered), said, offered.account,
        ),
        times.at,
    )  # fmt: skip
    if offered.exit is not None:
        here = Here(part=ids.part, attempt=ids.attempt, epoch=1, phase=Phase.ENDED, exit=offered.exit)
        record.ended_away(node.id, [here])
        # What follows from a report is dated with it; this ended long before.
        ended_at = Attempt.objects.get(id=ids.attempt).ended_at
        Stage.objects.filter(id=stage.id, ended_at__isnull=False).update(ended_at=ended_at)
        Job.objects.filter(id=job.id, ended_at__isnull=False).update(ended_at=ended_at)
    transaction.on_commit(changes.wake)
    transaction.on_commit(lambda: changes.announce("jobs", "fleet", f"job:{job.number}"))
    return job.number


def _times(offered: Offered) -> _Times:
    """Return when it was accepted, began and ended, by our clock: nodes tell ages and durations only."""
    at = timezone.now()

    def before(age_s: float) -> datetime:
        return at - timedelta(seconds=min(max(age_s, 0.0), LONGEST_AGE_S))

    began_at = before(offered.begun_s)
    ended_at = None
    if offered.exit is not None:
        ended_at = min(at, began_at + timedelta(seconds=min(max(offered.exit.ran_s, 0.0), LONGEST_AGE_S)))
    return _Times(min(before(offered.accepted_s), began_at), began_at, ended_at, at)


def _submitted(node: Node, job_id: str, offered: Offered, grant: LocalGrant, times: _Times) -> tuple[Job, Stage]:
    """Insert the job, in the first pool of its node that takes it. Raises InvalidSpec."""
    spec: dict[str, Any] = {key: offered.spec[key] for key in _KEYS if key in offered.spec}
    spec.setdefault("devices", {"kind": "cpu"})
    # It runs already, and nothing may run it again: its code lies on its node.
    fixed = {"project": grant.project.name, "retry": {"max": 1}, "on_node_lost": "wait"}
    shorter = {key: value for key, value in spec.items() if key != "time_limit"}
    pools = [*node.pools.order_by("name").values_list("name", flat=True)[:8]]
    refused = InvalidSpec([FieldError("/pool", _("its node is in no pool"), "no_pool")])
    for pool in pools:
        for tried in (spec, shorter):  # a pool may allow less time than the node did
            try:
                return service.submit_elsewhere(
                    {**tried, **fixed, "pool": pool},
                    grant.user,
                    job_id=uuid.UUID(job_id),
                    stage_id=uuid.UUID(local_ids(job_id).stage),
                    actor=offered.account,
                    at=times.accepted_at,
                )
            except InvalidSpec as error:
                refused = error
    raise refused


def _claims(node: Node, offered: Offered) -> list[tuple[uuid.UUID, int, int]]:
    """Return the claims on devices that the node has, none larger than its device."""
    asked = {claim.uuid: claim for claim in offered.claims}
    return [
        (one.id, min(asked[one.uuid].milli, one.capacity_milli), min(asked[one.uuid].memory_bytes, one.memory_bytes))
        for one in Device.objects.filter(node=node, uuid__in=asked).order_by("id")
    ]


def _give_way(node: Node, devices: Collection[str]) -> None:
    """Queue again what was placed on these devices while the node was cut off, and has not begun there."""
    waiting = Part.objects.filter(
        node=node, ended_at=None, phase=Phase.ASSIGNED, claims__device__uuid__in=devices, claims__closed_at=None,
        attempt__stop_why="",
    )  # fmt: skip
    with transaction.atomic():
        jobs = service.lock(waiting.values_list("attempt__stage__job_id", flat=True))
        why = told(clause("LocalJobHolds", node=node.name))
        at = timezone.now()
        for job in jobs.values():
            stages = list(Stage.objects.filter(job=job, attempts__in=waiting.values("attempt")).distinct())
            service.settle([job], service.stop([job], stages, Cause.MOVE, at, note=why), at, stages)
