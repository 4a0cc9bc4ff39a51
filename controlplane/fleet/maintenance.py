"""Maintenance windows: planning, cancelling, and their form for the scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane import changes
from controlplane.accounts import audit
from controlplane.fleet.models import MaintenanceWindow, Node
from controlplane.fleet.service import NodeRefused
from controlplane.pools.models import Pool
from scheduler.core.model import types

LONGEST_S = 366 * 86_400.0
# Id, node and pool (one of the two), start and end in seconds since the epoch, and the reason.
Row = tuple[int, str | None, str | None, float, float, str]


def not_ended(now: datetime) -> Q:
    """Return the condition of windows that have not ended."""
    return Q(cancelled_at=None, ends_at__gt=now)


def ahead(now: datetime) -> QuerySet[MaintenanceWindow]:
    """Return the windows that have not ended, the earliest first."""
    return MaintenanceWindow.objects.filter(not_ended(now)).select_related("node", "pool")


def by_node(nodes: Collection[Node], now: datetime) -> dict[str, list[MaintenanceWindow]]:
    """Return the windows that have not ended by node name; the nodes' pools must be prefetched."""
    pools = {pool.pk for node in nodes for pool in node.pools.all()}
    found: dict[str, list[MaintenanceWindow]] = defaultdict(list)
    for window in ahead(now).filter(Q(node__in=[node.pk for node in nodes]) | Q(pool__in=pools)):
        for node in nodes:
            if window.node_id == node.pk or any(window.pool_id == pool.pk for pool in node.pools.all()):
                found[node.name].append(window)
    return found


def plan(
    *,
    node: Node | None = None,
    pool: Pool | None = None,
    starts_at: datetime,
    ends_at: datetime,
    reason: str,
    actor: str,
    only_tried: bool = False,
) -> MaintenanceWindow:
    """Create a window for one node, or for all nodes of one pool. In a dry run (``only_tried``) it has the id 0 and is
    not stored.

    Raises NodeRefused with what would be accepted.
    """
    if found := fault(node, pool, starts_at, ends_at, reason):
        raise NodeRefused(found[1])
    window = MaintenanceWindow(
        node=node, pool=pool, starts_at=starts_at, ends_at=ends_at, reason=reason.strip()[:300], made_by=actor
    )
    if only_tried:
        window.pk = 0
        return window
    with transaction.atomic():
        window.save()
        told = audit.fields(window, "node", "pool", "starts_at", "ends_at")
        audit.record("maintenance.plan", ("maintenance", window.pk, _name(window)), after=told, reason=window.reason)
        announce()
    return window


def fault(
    node: Node | None, pool: Pool | None, starts_at: datetime, ends_at: datetime, reason: str
) -> tuple[str, str] | None:
    """Return the invalid field of a window with a sentence about it; None if the window is valid."""
    if (node is None) == (pool is None):
        return "node", _("name either a node or a pool, and not both")
    if ends_at <= starts_at:
        return "ends_at", _("it must end after it starts")
    if ends_at <= timezone.now():
        return "ends_at", _("it lies in the past; give an end that is still to come")
    if (ends_at - starts_at).total_seconds() > LONGEST_S:
        return "ends_at", _("it lasts longer than 366 days; drain what is away for good")
    if not reason.strip():
        return "reason", _("a maintenance needs a reason: others will ask")
    return None


def cancel(window: MaintenanceWindow, actor: str) -> MaintenanceWindow:
    """Cancel a window, also one that has begun. Raises NodeRefused if it has ended or was cancelled before."""
    now = timezone.now()
    with transaction.atomic():
        changed = MaintenanceWindow.objects.filter(pk=window.pk, cancelled_at=None, ends_at__gt=now).update(
            cancelled_at=now, cancelled_by=actor
        )
        if not changed:
            told = _("the maintenance of pool {name} has ended or was cancelled before")
            if window.node:
                told = _("the maintenance of node {name} has ended or was cancelled before")
            raise NodeRefused(told.format(name=window.node or window.pool))
        audit.record("maintenance.cancel", ("maintenance", window.pk, _name(window)), after={"cancelled_by": actor})
        announce()
    window.refresh_from_db()
    return window


def _name(window: MaintenanceWindow) -> str:
    return f"node {window.node.name}" if window.node else f"pool {window.pool.name if window.pool else ''}"


def announce() -> None:
    """Wake the scheduler and notify browsers once the transaction has committed."""
    transaction.on_commit(changes.wake)
    transaction.on_commit(lambda: changes.announce("fleet"))


def as_seen(rows: Iterable[Row], nodes: Sequence[types.Node]) -> tuple[types.Maintenance, ...]:
    """Return the windows for the scheduler, each with the nodes of its snapshot that it covers."""
    seen = []
    for window, node_id, pool, starts_at, ends_at, reason in rows:
        about = tuple(sorted(node.id for node in nodes if node.id == node_id or (pool and pool in node.pools)))
        seen.append(types.Maintenance(str(window), about, starts_at, ends_at, reason))
    return tuple(seen)
