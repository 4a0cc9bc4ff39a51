"""Applies a plan to the database: places the starts and requests the stops that it names."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from django.db import DatabaseError, DataError, IntegrityError, transaction
from django.db.models import F

from controlplane import changes
from controlplane.clauses import Told, clause, of_engine, of_error, told
from controlplane.jobs import arrays, demand, service
from controlplane.jobs.models import Stage as StageRow
from controlplane.scheduling.pool_refusals import refused
from scheduler.core.model.kinds import is_amount
from scheduler.core.model.lifecycle import StageEvent as What
from scheduler.core.model.lifecycle import State, sources
from scheduler.core.model.types import Device, Plan, Resize, Running, Snapshot, Stage, Start, Stop
from scheduler.core.ports import Applied
from scheduler.core.resources.elastic import faster
from scheduler.core.resources.speed import speed_of

log = logging.getLogger(__name__)


def apply_plan(snapshot: Snapshot, plan: Plan, now: float, faults: dict[str, Told] | None = None) -> Applied:
    """Apply a plan in one transaction; a gang is placed whole or not at all.

    Starts and stops whose rows are invalid are skipped and reported in ``faults`` by stage name.
    """
    if not plan.starts and not plan.stops:
        return Applied()
    at = datetime.fromtimestamp(now, UTC)
    try:
        with transaction.atomic():
            return _apply(snapshot, plan, at)
    except DatabaseError as error:
        if not isinstance(error, IntegrityError | DataError):
            raise  # the database is away or busy: that is no fault of a row
    except Exception:
        log.exception("a plan could not be applied as a whole")
    # Part of the plan is stale or invalid: apply it again, each start and stop in a savepoint of its own.
    with transaction.atomic():
        return _apply(snapshot, plan, at, carefully=True, faults={} if faults is None else faults)


@contextmanager
def _savepoint(who: str, faults: dict[str, Told], *, carefully: bool) -> Iterator[None]:
    """Run the block in a savepoint if ``carefully``: a failure is rolled back and noted in ``faults``, others go on.

    Otherwise there is no savepoint, and a database error ends the whole transaction.
    """
    if not carefully:
        yield
        return
    try:
        with transaction.atomic():
            yield
    except (IntegrityError, DataError) as error:
        if isinstance(error, DataError):
            faults[who] = of_error(error)
    except DatabaseError:
        raise
    except Exception as error:  # noqa: BLE001  it is told
        faults[who] = of_error(error)


def _apply(
    snapshot: Snapshot, plan: Plan, at: datetime, *, carefully: bool = False, faults: dict[str, Told] | None = None
) -> Applied:
    faults = {} if faults is None else faults
    # Few of a hundred thousand are planned: an index of all would take longer than the rest.
    starting, stopping = {start.stage for start in plan.starts}, {stop.victim for stop in plan.stops}
    stages = {stage.id: stage for stage in snapshot.waiting if stage.id in starting} if starting else {}
    victims = {run.id: run for run in snapshot.running if run.id in stopping} if stopping else {}
    touched = {stages[s.stage].job for s in plan.starts} | {victims[p.victim].job for p in plan.stops}
    jobs = service.lock(uuid.UUID(job) for job in touched)
    full = arrays.full(jobs[uuid.UUID(stages[start.stage].job)] for start in plan.starts)
    service.touch_nodes(
        uuid.UUID(node)
        for placement in [s.placement for s in plan.starts] + [victims[p.victim].placement for p in plan.stops]
        for node in placement.nodes
    )
    found = StageRow.objects.filter(id__in=starting | stopping).annotate(
        pool=F("job__pool__name"), project=F("job__project__name")
    )
    rows = {str(row.id): row for row in found}
    places = {node for start in plan.starts for node in start.placement.nodes}
    devices = {device.id: device for node in snapshot.nodes if node.id in places for device in node.devices}
    # Since the world was read a project may have lost the pool: then nothing starts, and makes room, for it.
    barred = refused(starting | {p.stage for p in plan.stops if p.stage})
    placings = []
    for start in plan.starts:
        row = rows.get(start.stage)
        if row is None or start.stage in barred or row.job_id in full:
            continue
        if _is_as_planned(stages[start.stage], row):
            with _savepoint(_named(stages[start.stage]), faults, carefully=carefully):
                placings.append(_placing(start, stages[start.stage], row, devices, snapshot.speeds))
    notes: list[service.Note] = []
    placed: set[str] = set()
    for group in [[placing] for placing in placings] if carefully else [placings] if placings else []:
        with _savepoint(_named(stages[str(group[0].stage.id)]), faults, carefully=carefully):
            notes += service.place(jobs, group, at)
            placed |= {str(placing.stage.id) for placing in group}
    stopped: list[str] = []
    for stop in plan.stops:
        row = rows.get(stop.victim)
        if row is None or row.state not in sources(What.STOP) or stop.stage in barred:
            continue
        with _savepoint(_named(victims[stop.victim]), faults, carefully=carefully):
            notes += service.stop(
                [jobs[row.job_id]],
                [row],
                stop.cause,
                at,
                stop_for=uuid.UUID(stop.stage) if stop.stage else None,
                stop_devices=[uuid.UUID(device) for device in stop.devices if not is_amount(device)],
                note=_note(stop),
                resized_to=stop.size if isinstance(stop, Resize) else None,
            )
            stopped.append(stop.victim)
    service.settle(jobs.values(), notes, at, [rows[i] for i in (*placed, *stopped)])
    keys = ["jobs", "fleet", "timeline", *(f"job:{job.number}" for job in list(jobs.values())[:50])]
    transaction.on_commit(lambda: changes.announce(*keys))
    skipped = tuple(s.stage for s in plan.starts if s.stage not in placed)
    return Applied(tuple(sorted(placed)), tuple(stopped), skipped)


def _is_as_planned(stage: Stage, row: Any) -> bool:
    """Whether a stage still waits as the plan knew it: its owner may have changed it since the world was read."""
    begin_at = row.begin_at.timestamp() if row.begin_at else None
    request = row.request
    return bool(
        row.state == State.PENDING
        and (stage.pool, stage.project, stage.time_limit_s) == (row.pool, row.project, request["time_limit_s"])
        and (stage.begin_at is None) == (begin_at is None)
        and abs((stage.begin_at or 0.0) - (begin_at or 0.0)) < 0.001
        and (stage.nodes, stage.most_nodes) == (demand.least_nodes(request), demand.most_nodes(request))
        and (stage.within, stage.avoid) == (request.get("within", ""), tuple(request.get("avoid", ())))
        and stage.only == demand.only(request)
        and stage.alternatives == demand.ways(request)
    )


def _named(stage: Stage | Running) -> str:
    return f"#{stage.number} {stage.name}"


def _note(stop: Stop) -> Told:
    why = of_engine(stop.why, stop.said)
    return told(clause("Resized", was=stop.was, now=stop.size, why=why)) if isinstance(stop, Resize) else why


def _placing(
    start: Start, stage: Stage, row: StageRow, devices: Mapping[str, Device], measured: Mapping[tuple[str, str], float]
) -> service.Placing:
    ranks = tuple(
        (uuid.UUID(node), grants) for node, grants in zip(start.placement.nodes, start.placement.grants, strict=True)
    )
    held = (grant for grants in start.placement.grants for grant in grants)
    # What history learns from the run is the work, so it must know for how fast the devices were taken.
    assumed = speed_of(stage.kind, stage.precision, held, devices, measured)
    if stage.most_nodes:
        assumed *= faster(stage.nodes, len(ranks), stage.scaling)
    estimate = {
        "p50_s": start.lasts.p50_s * assumed,
        "p90_s": start.lasts.p90_s * assumed,
        "basis": start.lasts.basis,
        "runs": start.lasts.runs,
        "speed": assumed,
        "known": start.lasts.known,
    }
    return service.Placing(row, start.placement.alternative, ranks, of_engine(start.why, start.said), estimate)
