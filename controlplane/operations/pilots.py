"""Looks after the pilots of providers: what waits, what there is, what the engine says, and what follows from it.

One worker at a time looks at a provider, under an advisory lock that a lost worker leaves at once. The lock saves work;
that no pilot is doubled or leaked rests on the record (:mod:`controlplane.providers.service`) and on the labels.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import Max, Q
from django.utils import timezone

from controlplane.advisory_lock import LockKey, advisory_lock
from controlplane.fleet import service as fleet
from controlplane.fleet.models import DrainMode, Node
from controlplane.jobs import demand as asks
from controlplane.jobs import drains, record
from controlplane.jobs.models import Part, Stage
from controlplane.providers import coming, kinds, service, shapes
from controlplane.providers.engine import EngineFault, EngineRefused, ForeignEngine, PilotOrder
from controlplane.providers.models import NodeProvider, Pilot
from controlplane.providers.reconcile import (
    PilotAction,
    PilotFacts,
    PilotFound,
    PilotGone,
    PilotLeaves,
    PilotsWanted,
    StopForeign,
    reconcile,
)
from scheduler.core.model.lifecycle import NodeState, State
from scheduler.core.model.types import Alternative
from scheduler.core.model.types import Node as Machine
from scheduler.core.resources.match import candidate

log = logging.getLogger(__name__)

# Reasons for waiting that more nodes would end; of a stage for which one is coming the first is that.
LACKS: Final = coming.LACKS | {coming.BRINGS}
# A stage that has waited for less, or that will start within so long anyway, asks for no node.
PATIENCE: Final = timedelta(seconds=5)
SOON: Final = timedelta(seconds=60)
MOST_STAGES: Final = 2_000
EVERY_S: Final = 5.0


def look() -> int:
    """Look at all providers that are enabled or have pilots; return how many were looked at."""
    rows = NodeProvider.objects.filter(
        Q(enabled=True) | Q(pk__in=Pilot.objects.exclude(state="GONE").values("provider"))
    )
    count = 0
    for number in list(rows.order_by("pk").values_list("pk", flat=True)):
        with advisory_lock(LockKey.PROVIDERS, number) as is_mine:
            if is_mine:
                try:
                    count += _look_at(NodeProvider.objects.select_related("pool").get(pk=number))
                except NodeProvider.DoesNotExist:
                    continue
                except Exception:
                    # One provider keeps no other from being looked at.
                    log.exception("provider %s could not be looked at", number)
    return count


def _look_at(provider: NodeProvider) -> bool:
    now = timezone.now()
    if provider.retry_at is not None and provider.retry_at > now:
        return False
    try:
        if wrong := provider.faults():
            raise EngineFault("SettingsWrong", "; ".join(sorted(wrong)))
        engine = kinds.engine(provider.kind, provider.settings)
        seen = engine.list(provider.tag)
        quota = engine.limits()
    except EngineFault as fault:
        service.note_fault(provider, fault, now)
        return False
    rows = {row.label: row for row in service.pilots(provider)}
    limits = service.limits(provider, quota, now)
    actions = reconcile(wanted(provider, engine, now), facts(list(rows.values())), seen, limits, now.timestamp())
    try:
        for action in actions:
            _apply(action, provider, engine, rows, now)
    except EngineFault as fault:
        service.note_fault(provider, fault, now)
    else:
        service.note_well(provider, now)
    return True


def _apply(
    action: PilotAction, provider: NodeProvider, engine: ForeignEngine, rows: Mapping[str, Pilot], now: datetime
) -> None:
    match action:
        case PilotFound(label, handle, phase, ends_at):
            over_at = None if ends_at is None else datetime.fromtimestamp(ends_at, UTC)
            service.found(rows[label], handle, phase, over_at, now)
        case PilotGone(label, why):
            _end(rows[label], why, now)
        case PilotLeaves(label, why):
            _leave(rows[label], why, now)
        case StopForeign(handle, force):
            engine.down([handle], force=force)
        case PilotsWanted(name, count):
            shape = next(each for each in provider.shapes if each["name"] == name)
            for asked in service.ask(provider.pk, shape, count, now):
                _ask(provider, engine, asked)


def _ask(provider: NodeProvider, engine: ForeignEngine, asked: service.AskedPilot) -> None:
    """Ask for a pilot that is written down. Where no answer comes, the next look finds out by its label."""
    row = asked.row
    assert row.node is not None
    order = PilotOrder(
        label=row.label,
        node=row.node.name,
        shape=asked.shape,
        hours=row.hours,
        url=settings.AGENTS_URL,
        token=asked.token,
        labels={"provider": provider.name, "pilot": str(row.pk)},
    )
    try:
        handle = engine.up(order)
    except EngineRefused:
        service.gone(row, Pilot.PilotEnd.REFUSED, timezone.now())
        raise
    service.take_handle(row, handle)


def _leave(row: Pilot, why: str, now: datetime) -> None:
    """Drain the node of a pilot: its stages are asked to save, and are queued again."""
    if not service.leave(row, why, now) or row.node is None:
        return
    if Node.objects.filter(pk=row.node.pk).exclude(state__in=[NodeState.DRAINED, NodeState.LOST]).exists():
        drains.drain([row.node], f"provider {row.provider.name}", service.leaves(row, why), mode=DrainMode.SAVE)


def _end(row: Pilot, why: str, now: datetime) -> None:
    """Give up what ran on a pilot that is gone, and let its node wait for another."""
    if row.node is not None and Part.objects.filter(node=row.node, ended_at=None).exists():
        fleet.declare_lost(row.node)
        node = Node.objects.get(pk=row.node.pk)
        record.give_up(node, f"provider {row.provider.name}", f"pilot {row.handle or row.label}: {why}")
    service.gone(row, why, now)


# -- what there is


def facts(rows: Sequence[Pilot]) -> list[PilotFacts]:
    """Return what the record has of these pilots."""
    nodes = [row.node.pk for row in rows if row.node is not None]
    parts = Part.objects.filter(node__in=nodes).order_by()
    busy = set(parts.filter(ended_at=None).values_list("node", flat=True))
    last = dict(parts.values_list("node").annotate(at=Max("ended_at")))
    found = []
    for row in rows:
        node = row.node
        heard = node.last_report_at if node is not None else None
        # What the node's former pilots reported counts for nothing.
        heard = heard if heard is not None and heard > row.created_at else None
        if heard is not None and row.joined_at is None:
            service.note_joined(row, heard)
        idle = None
        if node is not None and heard is not None and node.pk not in busy:
            idle = max(at for at in (row.up_at, node.state_at, last.get(node.pk), row.created_at) if at is not None)
        found.append(
            PilotFacts(
                label=row.label,
                shape=row.shape,
                state=row.state,
                asked_at=row.created_at.timestamp(),
                handle=row.handle,
                up_at=service.epoch(row.up_at),
                ends_at=service.epoch(row.ends_at),
                leaving_at=service.epoch(row.leaving_at),
                idle_since=service.epoch(idle),
                heard_at=service.epoch(heard),
            )
        )
    return found


# -- what waits


def wanted(provider: NodeProvider, engine: ForeignEngine, now: datetime) -> Counter[str]:
    """Return how many nodes of each shape the stages need that wait in the pool for want of a machine.

    Each counts for the cheapest shape on which it fits, of equal ones the first. Small stages share nodes. A stage
    without a time limit, or with one that a pilot does not last, asks for none.
    """
    cheapest = sorted(provider.shapes, key=engine.price)
    machines = [(shape["name"], shapes.as_node(shape, provider.pool.name)) for shape in cheapest]
    lasts_s = provider.hours * 3600 - service.lead_s(provider.hours)
    shares: Counter[str] = Counter()
    gangs: Counter[str] = Counter()
    for request in _lacking(provider, now):
        limit_s = request.get("time_limit_s")
        if limit_s is None or limit_s > lasts_s:
            continue
        fit = next(_fitting(asks.ways(request), machines), None)
        if fit is not None:
            name, share = fit
            count = asks.least_nodes(request)
            shares[name] += max(1, round(share * 1_000)) * count
            gangs[name] = max(gangs[name], count)
    return Counter({name: max(math.ceil(milli / 1_000), gangs[name]) for name, milli in shares.items()})


def _lacking(provider: NodeProvider, now: datetime) -> list[dict[str, Any]]:
    rows = Stage.objects.filter(
        job__pool=provider.pool, state=State.PENDING, eligible_at__lte=now - PATIENCE, evaluated_at__isnull=False
    )
    found = []
    for request, reasons, expected in rows.order_by("-job__priority", "job__number", "index").values_list(
        "request", "reasons", "expected"
    )[:MOST_STAGES]:
        is_soon = expected is not None and datetime.fromisoformat(expected["high_at"]) <= now + SOON
        if reasons and reasons[0].get("code") in LACKS and not is_soon:
            found.append(request)
    return found


def _fitting(ways: Sequence[Alternative], machines: Sequence[tuple[str, Machine]]) -> Iterator[tuple[str, float]]:
    """Yield the shapes on which a stage fits, the first first, each with the share of a node that it takes."""
    for name, machine in machines:
        for way in ways:
            if candidate(way, machine, healthy=False) is not None:
                yield name, _share(way, machine)
                break


def _share(way: Alternative, machine: Machine) -> float:
    """Return which share of the machine's scarcest resource a stage takes, at most 1."""
    share = 0.0
    for ask in way.asks:
        alike = [device for device in machine.devices if device.kind == ask.kind]
        capacity, memory = sum(one.capacity_milli for one in alike), sum(one.memory_bytes for one in alike)
        share = max(share, ask.count * ask.milli / max(1, capacity))
        if memory:
            share = max(share, ask.count * ask.memory_bytes / memory)
    return min(1.0, share)
