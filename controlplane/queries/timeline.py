"""Past, present and planned holders of each device, as lanes and segments; planned ones are reservations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db.models import Exists, F, OuterRef
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet.models import Device, Node
from controlplane.jobs import models as rows
from controlplane.queries.expected_end import ExpectedEnd, Going, expected_end, overran_at
from controlplane.queries.refusals import Unanswerable
from controlplane.queries.shared import shared
from controlplane.wellformed import fault_of
from scheduler.core.model.lifecycle import FINAL, WAITING

MOST_LANES = 1000
MOST_NODES = 1000
MOST_SEGMENTS = 5000
MOST_PLANNED = 2000
LONGEST = timedelta(days=31)


class Lane(msgspec.Struct, frozen=True):
    """One device; lanes are ordered by node, kind and index."""

    device: str
    node: str
    kind: str
    model: str
    index: int
    capacity_milli: int
    simulated: bool


class Segment(msgspec.Struct, frozen=True):
    """A share of a device over a span. ``job`` and what belongs to it are null if you may not see the job.

    ``state`` is the stage's while it holds the device, and the result of the attempt afterwards: COMPLETED or its
    cause. ``end_at`` is null while it runs; ``expected_end_at`` is then when it will probably end, or
    ``overdue_since_at`` when it should have ended if that time has passed; both are null if unknown. An ended one has
    ``overdue_since_at`` if it went on after its time limit, or after the late estimate (P90) of its end.
    """

    lane: str
    job: int | None
    name: str | None
    stage: str | None
    kind: str | None
    attempt: int | None
    project: str | None
    user: str | None
    state: str
    cause: str
    milli: int
    start_at: datetime
    end_at: datetime | None
    expected_end_at: datetime | None
    overdue_since_at: datetime | None
    planned: bool


class Timeline(msgspec.Struct, frozen=True):
    """Lanes and segments of a span, of ``node_count`` nodes in their natural order or of a part of these.

    ``truncated`` tells that there are more lanes or segments: ask for a shorter span or fewer nodes.
    """

    now: datetime
    from_at: datetime
    to_at: datetime
    lanes: list[Lane]
    segments: list[Segment]
    node_count: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Nodes:
    """Which nodes: those of ``pool`` whose name has ``part`` in it, without the first ``skip``, at most ``most``."""

    pool: str = ""
    part: str = ""
    skip: int = 0
    most: int = MOST_NODES


def between(user: User, first: str = "", last: str = "", nodes: Nodes = Nodes()) -> Timeline:
    """The timeline from ``first`` to ``last``, each a time or seconds relative to now, as this user may see it."""
    now = timezone.now().replace(microsecond=0)
    begin, end = _moment(first, -3600, now), _moment(last, 3600, now)
    if not begin < end <= begin + LONGEST:
        raise Unanswerable(_("from must be before to, by at most {most} days").format(most=LONGEST.days))
    name = f"timeline {first} {last} {nodes}"
    return shared(name, user, lambda: timeline(user, begin, end, nodes, now), Timeline)


def _moment(text: str, fallback_s: float, now: datetime) -> datetime:
    if not text:
        return now + timedelta(seconds=fallback_s)
    try:
        at: datetime | None = now + timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        # Not a number of seconds, so a date.
        try:
            at = parse_datetime(text.replace(" ", "+"))
        except ValueError:
            at = None
    if at is None or at.tzinfo is None:
        detail = _("from and to must be seconds relative to now, or times such as 2027-01-31T18:00:00Z")
        raise Unanswerable(detail)
    if fault := fault_of(at):
        raise Unanswerable(_("from and to {fault}").format(fault=fault))
    return at.astimezone(UTC)


def timeline(user: User, begin: datetime, end: datetime, nodes: Nodes, now: datetime) -> Timeline:
    """The timeline of this span as this user may see it."""
    found = Node.objects.filter(Exists(Device.objects.filter(node=OuterRef("pk"), present=True)))
    found = found.filter(name__icontains=nodes.part) if nodes.part else found
    found = found.filter(pools__name=nodes.pool) if nodes.pool else found
    ids = list(found.order_by("sort_key").values_list("id", flat=True))
    devices = Device.objects.filter(present=True, node__in=ids[nodes.skip : nodes.skip + nodes.most])
    devices = devices.select_related("node").order_by("node__sort_key", "kind", "index")
    chosen = list(devices[: MOST_LANES + 1])
    lanes = {device.id: device for device in chosen[:MOST_LANES]}
    held = _held(user, lanes, begin, end, now)
    planned = _planned(user, lanes, begin, end)
    return Timeline(
        now=now,
        from_at=begin,
        to_at=end,
        lanes=[
            Lane(d.uuid, d.node.name, d.kind, d.model, d.index, d.capacity_milli, d.simulated) for d in lanes.values()
        ],
        segments=held[:MOST_SEGMENTS] + planned[:MOST_PLANNED],
        node_count=len(ids),
        truncated=len(chosen) > MOST_LANES or len(held) > MOST_SEGMENTS or len(planned) > MOST_PLANNED,
    )


_OF_ATTEMPT: Final = "part__attempt__"
_OF_STAGE: Final = "part__attempt__stage__"
_OF_JOB: Final = "part__attempt__stage__job__"
# There may be thousands of claims, so only the shown columns are read, as plain values.
_SHOWN: Final = (
    "device_id", "milli", "opened_at", "closed_at", "part__started_at",
    f"{_OF_ATTEMPT}number", f"{_OF_ATTEMPT}cause", f"{_OF_STAGE}name", f"{_OF_STAGE}kind", f"{_OF_STAGE}state",
    f"{_OF_JOB}number", f"{_OF_JOB}name", f"{_OF_JOB}user_id", f"{_OF_JOB}user__username", f"{_OF_JOB}project_id",
    f"{_OF_JOB}project__name",
)  # fmt: skip
# The columns for the expected end of attempts, and for whether they went on after it.
_GOING: Final = (
    f"{_OF_ATTEMPT}started_at", f"{_OF_ATTEMPT}created_at", f"{_OF_ATTEMPT}ended_at", f"{_OF_ATTEMPT}stop_why",
    f"{_OF_ATTEMPT}estimate", f"{_OF_STAGE}progress", f"{_OF_STAGE}request__time_limit_s",
)  # fmt: skip


def _held(user: User, lanes: Mapping[Any, Device], begin: datetime, end: datetime, now: datetime) -> list[Segment]:
    """The claims on these devices within the span; the newest first if there are too many."""
    sees = permissions.sight(user)
    claims = rows.Claim.objects.filter(device__in=list(lanes)).order_by("-opened_at", "id")
    still = claims.filter(opened_at__lt=end, closed_at=None)[: MOST_SEGMENTS + 1].values_list(*_SHOWN, *_GOING)
    past = claims.filter(opened_at__lt=end, closed_at__gt=begin)[: MOST_SEGMENTS + 1].values_list(*_SHOWN, *_GOING)
    found = [_segment(shown[: len(_SHOWN)], lanes, sees, _ending(shown, now)) for shown in (*still, *past)]
    return sorted(found, key=lambda segment: segment.start_at, reverse=True)


def _ending(shown: tuple[Any, ...], now: datetime) -> ExpectedEnd:
    started_at, created_at, ended_at, stop_why, estimate, progress, time_limit_s = shown[len(_SHOWN) :]
    known = Going(
        state=shown[_SHOWN.index(f"{_OF_STAGE}state")],
        number=shown[_SHOWN.index(f"{_OF_ATTEMPT}number")],
        began_at=started_at or created_at,
        is_ending=ended_at is not None or bool(stop_why),
        estimate=estimate,
        progress=progress,
        time_limit_s=time_limit_s,
    )
    closed_at = shown[_SHOWN.index("closed_at")]
    return expected_end(known, now) if closed_at is None else ExpectedEnd(overdue_since_at=overran_at(known, closed_at))


def _segment(
    shown: tuple[Any, ...], lanes: Mapping[Any, Device], sees: Callable[[int, UUID], bool], ending: ExpectedEnd
) -> Segment:
    (
        device, milli, opened_at, closed_at, started_at, attempt, cause, stage, kind, state,
        number, name, user_id, username, project_id, project,
    ) = shown  # fmt: skip
    known = sees(user_id, project_id)
    return Segment(
        lane=lanes[device].uuid,
        job=number if known else None,
        name=name if known else None,
        stage=stage if known else None,
        kind=kind if known else None,
        attempt=attempt if known else None,
        project=project if known else None,
        user=username if known else None,
        state=state if closed_at is None and state not in FINAL else (cause or "COMPLETED"),
        cause=cause,
        milli=milli,
        start_at=started_at or opened_at,
        end_at=closed_at,
        expected_end_at=ending.expected_at,
        overdue_since_at=ending.overdue_since_at,
        planned=False,
    )


def _planned(user: User, lanes: Mapping[Any, Device], begin: datetime, end: datetime) -> list[Segment]:
    """The reservations of these devices within the span, soonest first."""
    by_text = {str(each): device for each, device in lanes.items()}
    waiting = rows.Stage.objects.filter(state__in=WAITING, planned__isnull=False).select_related(
        "job__project", "job__user"
    )
    # Times are stored as RFC 3339 in UTC, so text order is time order.
    chosen = waiting.order_by(F("planned__start_at"), "id")[: MOST_PLANNED + 1]
    seen = set(
        rows.Job.objects.filter(permissions.visible_jobs(user), id__in={stage.job_id for stage in chosen}).values_list(
            "id", flat=True
        )
    )
    found: list[Segment] = []
    for stage in chosen:
        entry = stage.planned or {}
        start_at, end_at = parse_datetime(entry["start_at"]), parse_datetime(entry["end_at"])
        if start_at is None or end_at is None or start_at >= end or end_at <= begin:
            continue
        known = stage.job_id in seen
        chosen_lanes = [by_text[each] for each in entry.get("devices", ()) if each in by_text]
        found += [_promise(stage, device, known, start_at, end_at) for device in chosen_lanes]
    return found


def _promise(stage: rows.Stage, device: Device, known: bool, start_at: datetime, end_at: datetime) -> Segment:
    asks = {ask["kind"]: ask["milli"] for way in reversed(stage.request["alternatives"]) for ask in way["asks"]}
    return Segment(
        lane=device.uuid,
        job=stage.job.number if known else None,
        name=stage.job.name if known else None,
        stage=stage.name if known else None,
        kind=stage.kind if known else None,
        attempt=None,
        project=stage.job.project.name if known else None,
        user=stage.job.user.get_username() if known else None,
        state=stage.state,
        cause="",
        milli=asks.get(device.kind, 1000),
        start_at=start_at,
        end_at=end_at,
        expected_end_at=None,
        overdue_since_at=None,
        planned=True,
    )
