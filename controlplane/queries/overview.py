"""The overview of the cluster: tiles, the map of devices, the queue, running stages, and warnings.

Every signed-in user sees all devices and their load; the job that holds a device is shown only to users who may see it.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from django.db.models import Count, F, Min
from django.utils import timezone

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.fleet import models as fleet
from controlplane.jobs import demand
from controlplane.jobs import models as rows
from controlplane.jobs.held_idle import held_idle
from controlplane.natural import natural_key
from controlplane.pools.models import Pool
from controlplane.queries import devices as device_rows
from controlplane.queries.attention import HeldDevice, Sign, attention
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.job_rows import ExpectedStart, expected
from controlplane.queries.shared import shared
from scheduler.core.model.lifecycle import ACTIVE, USABLE_HEALTH, WAITING, NodeState

MOST_RUNNING = 100
NEXT_STARTS = 5


class Tile(msgspec.Struct, frozen=True):
    """Devices of one kind and model, counted in ``unit`` (cores for CPUs). ``used_mean`` is the mean utilisation of the
    allocated ones."""

    kind: str
    model: str
    unit: str
    total: float
    healthy: float
    allocated: float
    used_mean: float | None
    held_idle: float
    offline: float
    simulated: bool


class MapDevice(msgspec.Struct, frozen=True):
    """One cell of the map. ``u`` is the utilisation from 0 to 1; ``job`` is null if you may not see it.

    ``state`` is free, allocated, held_idle, unhealthy, draining or offline.
    """

    uuid: str
    index: int
    kind: str
    model: str
    u: float | None
    state: str
    job: int | None
    project: str | None
    milli: int
    capacity: int
    simulated: bool


class MapNode(msgspec.Struct, frozen=True):
    """One row of the map."""

    name: str
    state: NodeState
    pools: list[str]
    simulated: bool
    devices: list[MapDevice]


class NextStart(msgspec.Struct, frozen=True):
    """A waiting stage that is expected to start soon."""

    number: int
    name: str
    stage: str
    asks: str
    asks_said: list[Clause]
    device_kind: str
    expected_start: ExpectedStart | None


class Queue(msgspec.Struct, frozen=True):
    """The length of the queue over all projects, and those of your stages that are expected to start first."""

    waiting: int
    oldest_at: datetime | None
    next: list[NextStart]


class RunningStage(msgspec.Struct, frozen=True):
    """A stage that holds devices."""

    number: int
    name: str
    stage: str
    state: str
    project: str
    user: str
    asks: str
    asks_said: list[Clause]
    device_kind: str
    started_at: datetime | None
    progress: float | None


class Counts(msgspec.Struct, frozen=True):
    """Jobs of the last 24 hours, nodes, and devices of all kinds (CPUs too), each by state, over all projects."""

    jobs: dict[str, int]
    nodes: dict[str, int]
    devices: dict[str, int]


class Overview(msgspec.Struct, frozen=True):
    """The overview of the cluster. ``running`` are the newest hundred of ``running_count`` stages, ``attention`` the
    most urgent seven of ``attention_count`` signs."""

    profile: str
    tiles: list[Tile]
    nodes: list[MapNode]
    queue: Queue
    running: list[RunningStage]
    running_count: int
    attention: list[Sign]
    attention_count: int
    counts: Counts


@dataclass(slots=True)
class _Cell:
    row: fleet.Device
    shown: MapDevice


def now(user: User) -> Overview:
    """The overview as this user may see it; reused for a moment if it takes long to compute."""
    return shared("overview", user, lambda: overview(user), Overview)


def overview(user: User) -> Overview:
    """Compute the overview as this user may see it."""
    nodes = list(fleet.Node.objects.filter(is_site=False).prefetch_related("pools"))
    cells = _cells(nodes, user)
    waiting, (active, active_count) = queue(user), running(user)
    held = (HeldDevice(cell.row, cell.shown.state, cell.shown.job) for cell in cells)
    signs, sign_count = attention(nodes, held, user)
    by_node: dict[uuid.UUID, list[MapDevice]] = defaultdict(list)
    for cell in cells:
        by_node[cell.row.node_id].append(cell.shown)
    since = timezone.now() - timedelta(days=1)
    jobs = rows.Job.objects.filter(submitted_at__gte=since).order_by().values_list("state").annotate(Count("id"))
    profiles = dict(Pool.objects.values_list("name", "profile"))
    return Overview(
        profile=profiles.get("default") or next(iter(profiles.values()), ""),
        tiles=tiles(cell.shown for cell in cells),
        nodes=[
            MapNode(
                node.name,
                NodeState(node.state),
                sorted((pool.name for pool in node.pools.all()), key=natural_key),
                node.simulated,
                by_node[node.id],
            )
            for node in nodes
        ],
        queue=waiting,
        running=active,
        running_count=active_count,
        attention=signs,
        attention_count=sign_count,
        counts=Counts(
            jobs=dict(jobs),
            nodes=dict(Counter(node.state for node in nodes)),
            devices=dict(Counter(cell.shown.state for cell in cells)),
        ),
    )


def _cells(nodes: list[fleet.Node], user: User) -> list[_Cell]:
    states = {node.id: NodeState(node.state) for node in nodes}
    devices = list(fleet.Device.objects.filter(present=True).order_by("kind", "index"))
    ids = [device.id for device in devices]
    samples, claims = device_rows.newest_samples(ids), device_rows.open_claims(ids, user)
    idle = held_idle()
    cells = []
    for device in devices:
        sample = samples.get(device.id)
        largest = max(claims.get(device.id, ()), key=lambda claim: claim.milli, default=None)
        cells.append(
            _Cell(
                device,
                MapDevice(
                    uuid=device.uuid,
                    index=device.index,
                    kind=device.kind,
                    model=device.model,
                    u=sample.utilisation if sample else None,
                    state=state_of(
                        states[device.node_id], device.health, device.claimed_milli, is_idle=device.id in idle
                    ),
                    job=largest.job if largest else None,
                    project=largest.project if largest else None,
                    milli=device.claimed_milli,
                    capacity=device.capacity_milli,
                    simulated=device.simulated,
                ),
            )
        )
    return cells


def state_of(node: NodeState, health: str, claimed_milli: int, *, is_idle: bool) -> str:
    """The state of a device on the map, by that of its node, its health and its claims."""
    if node in {NodeState.LOST, NodeState.JOINING}:
        return "offline"
    if health not in USABLE_HEALTH:
        return "unhealthy"
    if node in {NodeState.DRAINING, NodeState.DRAINED}:
        return "draining"
    if claimed_milli == 0:
        return "free"
    return "held_idle" if is_idle else "allocated"


class Counted(Protocol):
    """The attributes of a device that a tile counts."""

    @property
    def kind(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def simulated(self) -> bool: ...
    @property
    def milli(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def u(self) -> float | None: ...


def tiles(devices: Iterable[Counted], is_folded: bool = False) -> list[Tile]:
    """A tile for each kind and model, with simulated devices in tiles of their own.

    With ``is_folded`` all models of CPUs are one tile, whose model is empty.
    """
    groups: dict[tuple[str, str, bool], list[Counted]] = defaultdict(list)
    for device in devices:
        model = "" if is_folded and device.kind == "cpu" else device.model
        groups[device.kind, model, device.simulated].append(device)
    order = {"cpu": 0, "gpu": 1, "npu": 2}
    return [
        _tile(*key, groups[key])
        for key in sorted(groups, key=lambda key: (key[2], order.get(key[0], 9), key[0], key[1]))
    ]


def _tile(kind: str, model: str, simulated: bool, devices: list[Counted]) -> Tile:
    def size(device: Counted) -> float:
        # A CPU is counted by its cores; any other device is one unit, however much of it is claimed.
        return device.capacity / 1000 if kind == "cpu" else 1.0

    def count(*states: str) -> float:
        return round(sum(size(device) for device in devices if device.state in states), 3)

    total = round(sum(size(device) for device in devices), 3)
    used = [(device.u, size(device)) for device in devices if device.milli and device.u is not None]
    weight = sum(each for _, each in used)
    return Tile(
        kind=kind,
        model=model,
        unit="cores" if kind == "cpu" else "devices",
        total=total,
        healthy=round(total - count("offline", "unhealthy"), 3),
        allocated=round(sum(size(device) * device.milli / device.capacity for device in devices if device.capacity), 3),
        used_mean=round(sum(u * each for u, each in used if u is not None) / weight, 4) if weight else None,
        held_idle=count("held_idle"),
        offline=count("offline"),
        simulated=simulated,
    )


def queue(user: User) -> Queue:
    """The length of the queue, and the stages among those this user may see that start next."""
    waiting = rows.Stage.objects.filter(state__in=WAITING)
    totals = waiting.aggregate(count=Count("id"), oldest_at=Min("eligible_at"))
    # Only stages with a reservation can start next, and there are few of them however long the queue is.
    planned = waiting.filter(permissions.visible_jobs(user, "job__")).exclude(expected=None).select_related("job")
    soonest = planned.order_by("expected__low_at", "job__number")[:NEXT_STARTS]
    return Queue(
        waiting=totals["count"],
        oldest_at=totals["oldest_at"],
        next=[
            NextStart(
                stage.job.number,
                stage.job.name,
                stage.name,
                asked.text,
                clauses(asked.said),
                demand.device_kind(stage.request),
                expected(stage.expected),
            )
            for stage in soonest
            for asked in (demand.asked(stage.request),)
        ],
    )


def running(user: User, most: int = MOST_RUNNING) -> tuple[list[RunningStage], int]:
    """The newest stages that hold devices, and how many there are."""
    active = rows.Stage.objects.filter(permissions.visible_jobs(user, "job__"), state__in=ACTIVE)
    chosen = active.select_related("job__project", "job__user").order_by(F("started_at").desc(nulls_first=True), "id")
    shown = [
        RunningStage(
            number=stage.job.number,
            name=stage.job.name,
            stage=stage.name,
            state=stage.state,
            project=stage.job.project.name,
            user=stage.job.user.get_username(),
            asks=asked.text,
            asks_said=clauses(asked.said),
            device_kind=demand.device_kind(stage.request),
            started_at=stage.started_at,
            progress=_share(stage.progress),
        )
        for stage in chosen[:most]
        for asked in (demand.asked(stage.request),)
    ]
    return shown, active.count() if len(shown) == most else len(shown)


def _share(progress: dict[str, float] | None) -> float | None:
    if not progress or not progress.get("total") or progress.get("step") is None:
        return None
    return round(min(1.0, max(0.0, progress["step"] / progress["total"])), 4)
