"""Maintenance windows: planning and cancelling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import audit
from controlplane.fleet import calendar
from controlplane.fleet.calendar import EntryRefused
from controlplane.fleet.models import MaintenanceWindow, Node
from controlplane.fleet.service import NodeRefused
from controlplane.pools.models import Pool


def ahead(now: datetime) -> QuerySet[MaintenanceWindow]:
    """Return the windows that have not ended, the earliest first."""
    return MaintenanceWindow.objects.filter(calendar.not_ended(now)).select_related("node", "pool")


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
    **recurs: Any,
) -> MaintenanceWindow:
    """Create a window for one node, or for all nodes of one pool; ``recurs`` may have ``cron``, ``time_zone`` and
    ``lasts_s``. In a dry run (``only_tried``) it has the id 0 and is not stored.

    Raises EntryRefused.
    """
    window = MaintenanceWindow(
        node=node, pool=pool, starts_at=starts_at, ends_at=ends_at, reason=reason.strip()[:300], made_by=actor, **recurs
    )
    if found := fault(window):
        raise EntryRefused(*found)
    if only_tried:
        window.pk = 0
        return window
    with transaction.atomic():
        window.save()
        told = audit.fields(window, "node", "pool", *calendar.TOLD)
        audit.record("maintenance.plan", ("maintenance", window.pk, _name(window)), after=told, reason=window.reason)
        calendar.announce()
    return window


def change(
    window: MaintenanceWindow,
    *,
    only_tried: bool = False,
    judge: Callable[[MaintenanceWindow], None] = lambda now: None,
    **given: Any,
) -> MaintenanceWindow:
    """Change what is named of a window that has not ended: its node or pool, its times and its reason. In a dry run
    (``only_tried``) nothing is stored. ``judge`` gets it locked as it is, and may raise. Raises EntryRefused, and
    NodeRefused if it is over."""
    with transaction.atomic():
        locked = ahead(timezone.now()).select_for_update(of=("self",)).filter(pk=window.pk).first()
        if locked is None:
            raise _over(window)
        judge(locked)
        before = audit.fields(locked, "node", "pool", *calendar.TOLD)
        for field, value in given.items():
            setattr(locked, field, value)
        locked.reason = locked.reason.strip()[:300]
        if found := fault(locked):
            raise EntryRefused(*found)
        if not only_tried:
            locked.save()
            after = audit.fields(locked, "node", "pool", *calendar.TOLD)
            about = ("maintenance", locked.pk, _name(locked))
            audit.record("maintenance.change", about, before=before, after=after, reason=locked.reason)
            calendar.announce()
    return locked


def fault(window: MaintenanceWindow) -> tuple[str, str] | None:
    """Return the invalid field of a window with a sentence about it; None if the window is valid."""
    if (window.node_id is None) == (window.pool_id is None):
        return "node", _("name either a node or a pool, and not both")
    return calendar.fault(window)


def cancel(window: MaintenanceWindow, actor: str) -> MaintenanceWindow:
    """Cancel a window, also one that has begun. Raises NodeRefused if it has ended or was cancelled before."""
    now = timezone.now()
    with transaction.atomic():
        changed = MaintenanceWindow.objects.filter(calendar.not_ended(now), pk=window.pk).update(
            cancelled_at=now, cancelled_by=actor
        )
        if not changed:
            raise _over(window)
        audit.record("maintenance.cancel", ("maintenance", window.pk, _name(window)), after={"cancelled_by": actor})
        calendar.announce()
    window.refresh_from_db()
    return window


def _over(window: MaintenanceWindow) -> NodeRefused:
    told = _("the maintenance of pool {name} has ended or was cancelled before")
    if window.node:
        told = _("the maintenance of node {name} has ended or was cancelled before")
    return NodeRefused(told.format(name=window.node or window.pool))


def _name(window: MaintenanceWindow) -> str:
    return f"node {window.node.name}" if window.node else f"pool {window.pool.name if window.pool else ''}"
