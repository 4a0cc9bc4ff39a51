"""The only writer of pilots, and of what is known of their providers. A pilot's state changes by conditional updates.

Each function is one transaction that changes nothing if it was done before; a worker that is lost between two of them
leaves a record that the next look can go on from.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import Told, clause, told
from controlplane.fleet import alarms, maintenance
from controlplane.fleet import service as fleet
from controlplane.fleet.models import MaintenanceWindow, Node
from controlplane.providers.engine import EngineFault, ForeignPhase
from controlplane.providers.models import NodeProvider, Pilot
from controlplane.providers.reconcile import LEAVE_S, ProviderLimits

log = logging.getLogger(__name__)

PilotState, PilotEnd = Pilot.PilotState, Pilot.PilotEnd
BUDGET_DAYS: Final = 30
# The engine is asked again after 5, 10, 20 ... seconds, at most five minutes.
FIRST_RETRY_S: Final = 5.0
LONGEST_RETRY_S: Final = 300.0
# Why a pilot leaves, in words.
_LEAVES: Final = {
    "idle": "PilotIdle",
    "ends": "PilotEnds",
    "waited": "PilotWaited",
    "disabled": "PilotDisabled",
    "never_came": "PilotNeverCame",
}
# From so many failures in a row operators see an alarm.
ALARMING: Final = 3
# After a pilot whose agent did not join the next is asked for 10, 20, 40 ... seconds later, at most an hour.
FIRST_STRAY_S: Final = 10.0
LONGEST_STRAY_S: Final = 3_600.0
MOST_STRAYS: Final = 12
# How much longer than its wait a pilot may use its token: its agent still has to start.
START_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class AskedPilot:
    """A pilot that is written down but not asked for yet, and the token with which its node joins."""

    row: Pilot
    shape: Mapping[str, Any]
    token: str = field(repr=False)


def pilots(provider: NodeProvider) -> list[Pilot]:
    """Return the pilots that are not gone, with their nodes and windows."""
    rows = provider.pilots.exclude(state=PilotState.GONE).select_related("node", "window")
    return list(rows.order_by("created_at", "id"))


def lead_s(hours: float) -> float:
    """Return how long before its end a pilot of so many hours is emptied."""
    return min(LEAVE_S, hours * 3600 / 4)


def node_hours(provider: NodeProvider, now: datetime) -> float:
    """Return the hours of nodes of the last 30 days; a pilot that is not gone counts with all of its hours."""
    since = now - timedelta(days=BUDGET_DAYS)
    used = 0.0
    rows = provider.pilots.filter(Q(gone_at=None) | Q(gone_at__gt=since))
    for state, hours, up_at, gone_at in rows.values_list("state", "hours", "up_at", "gone_at"):
        if state != PilotState.GONE:
            used += hours
        elif up_at is not None and gone_at is not None:
            used += max(0.0, (gone_at - max(up_at, since)).total_seconds()) / 3600
    return used


def limits(provider: NodeProvider, quota: int | None, now: datetime) -> ProviderLimits:
    """Return what bounds a provider now."""
    budget = provider.budget_node_hours
    return ProviderLimits(
        shapes=tuple(shape["name"] for shape in provider.shapes),
        max_nodes=provider.max_nodes,
        min_nodes=provider.min_nodes,
        hours=provider.hours,
        node_hours_left=None if budget is None else budget - node_hours(provider, now),
        quota=quota,
        idle_s=provider.idle_s,
        wait_s=provider.wait_s,
        enabled=provider.enabled,
        ask_after=ask_after(provider),
    )


def strays(provider: NodeProvider) -> list[Pilot]:
    """Return the newest pilots, of those that are gone, that all ended without their agent having joined."""
    found = []
    for pilot in provider.pilots.filter(state=PilotState.GONE).order_by("-gone_at")[:MOST_STRAYS]:
        if pilot.joined_at is not None or pilot.why not in (PilotEnd.ENDED, PilotEnd.VANISHED, PilotEnd.NEVER_CAME):
            break
        found.append(pilot)
    return found


def ask_after(provider: NodeProvider) -> float:
    """Return before when no pilot is asked for, in seconds since the epoch: the more strays in a row, the longer."""
    lost = strays(provider)
    if not lost or lost[0].gone_at is None:
        return 0.0
    return lost[0].gone_at.timestamp() + min(LONGEST_STRAY_S, FIRST_STRAY_S * 2 ** (len(lost) - 1))


def note_joined(pilot: Pilot, at: datetime) -> None:
    """Note that the agent of a pilot has reported."""
    Pilot.objects.filter(pk=pilot.pk, joined_at=None).update(joined_at=at)


def ask(provider_id: int, shape: Mapping[str, Any], count: int, now: datetime) -> list[AskedPilot]:
    """Write down at most ``count`` pilots of a shape, as far as its maximum and budget allow; the caller asks for them.

    The provider's row is locked: two workers that look at once together write no more than the maximum.
    """
    asked = []
    with transaction.atomic():
        provider = NodeProvider.objects.select_for_update().select_related("pool").get(pk=provider_id)
        here = provider.pilots.exclude(state=PilotState.GONE)
        room = provider.max_nodes - here.count()
        if provider.budget_node_hours is not None:
            left = provider.budget_node_hours - node_hours(provider, now)
            room = min(room, int(left / provider.hours))
        if not provider.enabled:
            return []
        busy = set(here.exclude(node=None).values_list("node__name", flat=True))
        for name in _free_names(provider, busy, min(count, room)):
            pilot = uuid.uuid4()
            node = fleet.expect(name, provider.pool, {"provider": provider.name, "pilot": str(pilot)})
            token = fleet.make_return_token(node, life=timedelta(seconds=provider.wait_s + START_S))
            row = Pilot.objects.create(
                id=pilot,
                provider=provider,
                shape=shape["name"],
                hours=provider.hours,
                label=f"yard-{provider.tag}-{pilot.hex}",
                node=node,
                created_at=now,
            )
            asked.append(AskedPilot(row, shape, token))
        transaction.on_commit(lambda: changes.announce("fleet"))
    return asked


def _free_names(provider: NodeProvider, busy: set[str], count: int) -> list[str]:
    """Return names of nodes of this provider that have no pilot now. Nodes are used again, so that they stay few."""
    names = [f"{provider.name}-{number}" for number in range(1, 2 * provider.max_nodes + len(busy) + 1)]
    others = {
        name
        for name, labels in Node.objects.filter(name__in=names).values_list("name", "labels")
        if not isinstance(labels, dict) or labels.get("provider") != provider.name
    }
    free = [name for name in names if name not in busy and name not in others]
    return free[: max(0, count)]


def take_handle(pilot: Pilot, handle: str) -> None:
    """Note that the engine has taken a pilot."""
    Pilot.objects.filter(pk=pilot.pk, state=PilotState.ASKED).update(state=PilotState.QUEUED, handle=handle[:200])


def found(pilot: Pilot, handle: str, phase: ForeignPhase, ends_at: datetime | None, now: datetime) -> None:
    """Take over what the engine says of a pilot: its handle, that it runs, and its end, before which nothing is placed
    on its node that would run into it."""
    mine = Pilot.objects.filter(pk=pilot.pk)
    mine.exclude(state=PilotState.GONE).update(handle=handle[:200], ends_at=ends_at or pilot.ends_at)
    if phase is ForeignPhase.RUNNING:
        mine.filter(state__in=[PilotState.ASKED, PilotState.QUEUED]).update(state=PilotState.UP)
        mine.exclude(state=PilotState.GONE).update(up_at=Coalesce("up_at", now))
        if ends_at is not None and pilot.node is not None:
            _plan_end(pilot, pilot.node, ends_at)
    else:
        mine.filter(state=PilotState.ASKED).update(state=PilotState.QUEUED)
    changes.announce("fleet")


def _plan_end(pilot: Pilot, node: Node, ends_at: datetime) -> None:
    starts_at, over_at = ends_at - timedelta(seconds=lead_s(pilot.hours)), ends_at + timedelta(hours=1)
    window = pilot.window
    if window is not None and window.starts_at == starts_at:
        return
    by = f"provider {pilot.provider.name}"
    with transaction.atomic():
        # Also the window of a worker that was lost before it noted it.
        before = MaintenanceWindow.objects.filter(node=node, made_by=by, cancelled_at=None)
        for each in before.filter(ends_at__gt=timezone.now()):
            maintenance.cancel(each, by)
        reason = f"the allocation {pilot.handle or pilot.label} ends"
        planned = maintenance.plan(node=node, starts_at=starts_at, ends_at=over_at, reason=reason, actor=by)
        Pilot.objects.filter(pk=pilot.pk).update(window=planned)


def leave(pilot: Pilot, why: str, now: datetime) -> bool:
    """Note that a pilot is to leave; the caller drains its node. Return whether it was not to leave before."""
    rows = Pilot.objects.filter(pk=pilot.pk).exclude(state__in=[PilotState.LEAVING, PilotState.GONE])
    return bool(rows.update(state=PilotState.LEAVING, why=why, leaving_at=now))


def leaves(pilot: Pilot, why: str) -> Told:
    """Return why the node of a pilot drains."""
    return told(clause("PilotLeaves", provider=pilot.provider.name, why=told(clause(_LEAVES[why]))))


def gone(pilot: Pilot, why: str, now: datetime) -> None:
    """Note that a pilot is gone: its node's credential is revoked, and the node waits for another pilot.

    What ran there must have been given up before (:func:`controlplane.jobs.record.give_up`).
    """
    if pilot.node is not None:
        fleet.depart(pilot.node, told(clause("PilotGone", provider=pilot.provider.name)))
        by = f"provider {pilot.provider.name}"
        windows = MaintenanceWindow.objects.filter(node=pilot.node, made_by=by, cancelled_at=None, ends_at__gt=now)
        for window in windows:
            maintenance.cancel(window, by)
    rows = Pilot.objects.filter(pk=pilot.pk).exclude(state=PilotState.GONE)
    rows.update(state=PilotState.GONE, gone_at=now, why=pilot.why or why)
    old = now - timedelta(days=BUDGET_DAYS)
    pilot.provider.pilots.filter(state=PilotState.GONE, gone_at__lt=old).delete()
    changes.announce("fleet")


def note_fault(provider: NodeProvider, fault: EngineFault, now: datetime) -> None:
    """Write down why the engine cannot be asked; it is asked again later, each time later than before."""
    failures = provider.failures + 1
    retry_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures - 1, 10))
    says = told(clause(fault.code, what=alarms.sentence(fault.detail, 200)))
    log.warning("provider %s: %s", provider.name, says.text)
    NodeProvider.objects.filter(pk=provider.pk).update(
        condition=says.text[:400],
        said=says.said,
        condition_at=now if provider.condition != says.text[:400] else provider.condition_at,
        failures=failures,
        retry_at=now + timedelta(seconds=retry_s),
        looked_at=now,
    )
    if failures >= ALARMING:
        alarms.raised(alarms.PROVIDER, {provider.name: says}, about=provider.name)
    changes.announce("fleet")


def note_well(provider: NodeProvider, now: datetime) -> None:
    """Write down that the engine answered and took what it was asked; pilots that do not join are a condition too."""
    lost = len(strays(provider))
    says = told(clause("PilotsStray", count=lost)) if lost else Told()
    changed = provider.condition != says.text
    NodeProvider.objects.filter(pk=provider.pk).update(
        condition=says.text[:400],
        said=says.said,
        condition_at=now if changed else provider.condition_at,
        failures=0,
        retry_at=None,
        looked_at=now,
    )
    if changed or provider.failures:
        alarming = {provider.name: says} if lost >= ALARMING else {}
        alarms.raised(alarms.PROVIDER, alarming, about=provider.name)
        changes.announce("fleet")


def epoch(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
