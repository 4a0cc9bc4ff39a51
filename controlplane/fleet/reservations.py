"""Reservations: whole nodes that are for jobs of one project for a time. Planning, cancelling, and who holds one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Prefetch, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import audit
from controlplane.accounts.models import Project, User
from controlplane.advisory_lock import LockKey
from controlplane.fleet import calendar, maintenance
from controlplane.fleet.calendar import EntryRefused
from controlplane.fleet.models import CalendarEntry, Device, MaintenanceWindow, Node, Reservation
from controlplane.fleet.service import NodeRefused
from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import Health, NodeState

SERVES = (NodeState.JOINING, NodeState.READY, NodeState.SUSPECT)


def ahead(now: datetime) -> QuerySet[Reservation]:
    """Return the reservations that have not ended, the earliest first."""
    return rows().filter(calendar.not_ended(now))


def rows() -> QuerySet[Reservation]:
    """Return all reservations with who holds them and their nodes."""
    names = Prefetch("nodes", Node.objects.only("name", "sort_key").order_by("sort_key"))
    return Reservation.objects.select_related("project").prefetch_related(
        names, Prefetch("users", User.objects.only("username").order_by("username"))
    )


def plan(
    *,
    name: str,
    project: Project,
    users: Sequence[User] = (),
    nodes: Sequence[Node] = (),
    pool: Pool | None = None,
    device: str = "",
    count: int | None = None,
    starts_at: datetime,
    ends_at: datetime,
    reason: str,
    actor: str,
    only_tried: bool = False,
    **recurs: Any,
) -> Reservation:
    """Reserve these nodes, or in a pool as many whole nodes as have ``count`` devices of a kind or model.

    ``recurs`` may have ``cron``, ``time_zone`` and ``lasts_s``. In a dry run (``only_tried``) nothing is stored. Raises
    EntryRefused.
    """
    made = Reservation(
        name=name, project=project, starts_at=starts_at, ends_at=ends_at, reason=reason.strip()[:300], made_by=actor
    )
    for field, value in recurs.items():
        setattr(made, field, value)
    if found := calendar.fault(made):
        raise EntryRefused(*found)
    if bool(nodes) == (count is not None):
        raise EntryRefused("nodes", _("name either nodes, or a count of devices in a pool"))
    if count is not None and (pool is None or not device):
        raise EntryRefused("pool", _("a count of devices needs a pool, and a kind or model of device"))
    with transaction.atomic():
        _one_at_a_time()
        if Reservation.objects.filter(name=name).exists():
            raise EntryRefused("name", _("there is a reservation {name} already").format(name=name))
        kept = _free(made, nodes) if nodes else _chosen(made, pool, device, count or 0)
        made.save()
        made.nodes.set(kept)
        made.users.set(users)
        audit.record("reservation.plan", made, after=_told(made), reason=made.reason)
        return _kept(made, only_tried)


def change(
    made: Reservation,
    *,
    only_tried: bool = False,
    users: Sequence[User] | None = None,
    nodes: Sequence[Node] | None = None,
    judge: Callable[[Reservation], None] = lambda now: None,
    **given: Any,
) -> Reservation:
    """Change the times, the reason, the nodes or the users of a reservation that has not ended, as far as they are
    named. In a dry run (``only_tried``) nothing is stored. ``judge`` gets it locked as it is, and may raise. Raises
    EntryRefused, and NodeRefused if it is over."""
    with transaction.atomic():
        _one_at_a_time()
        locked = ahead(timezone.now()).select_for_update(of=("self",)).filter(pk=made.pk).first()
        if locked is None:
            raise _over(made)
        judge(locked)
        before = _told(locked)
        for field, value in given.items():
            setattr(locked, field, value)
        locked.reason = locked.reason.strip()[:300]
        if found := calendar.fault(locked):
            raise EntryRefused(*found)
        kept = list(locked.nodes.all()) if nodes is None else list(nodes)
        if not kept:
            raise EntryRefused("nodes", _("a reservation keeps at least one node"))
        locked.nodes.set(_free(locked, kept))
        if users is not None:
            locked.users.set(users)
        locked.save()
        audit.record("reservation.change", locked, before=before, after=_told(locked), reason=locked.reason)
        return _kept(locked, only_tried)


def _one_at_a_time() -> None:
    """One reservation is planned at a time, so that none overlaps another."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LockKey.RESERVATIONS])


def _told(made: Reservation) -> dict[str, Any]:
    """Return what the audit log has of a reservation."""
    return audit.fields(made, "project", *calendar.TOLD) | {
        "nodes": list(made.nodes.order_by("sort_key").values_list("name", flat=True)),
        "users": list(made.users.order_by("username").values_list("username", flat=True)),
    }


def _kept(made: Reservation, only_tried: bool) -> Reservation:
    """Return the reservation as it was stored, and undo that where it is only tried."""
    calendar.announce()
    made = rows().get(pk=made.pk)
    list(made.nodes.all()), list(made.users.all())
    if only_tried:
        transaction.set_rollback(True)
    return made


def _over(made: Reservation) -> NodeRefused:
    return NodeRefused(_("reservation {name} has ended or was cancelled before").format(name=made.name))


def _free(made: Reservation, nodes: Sequence[Node]) -> list[Node]:
    """Return these nodes; raise if one of them is kept for something else meanwhile."""
    for node in nodes:
        if clash := _clash(made, node, _others(nodes)):
            other, at = clash
            said = _("node {node} is kept for {other} from {time}; name another node or time")
            raise EntryRefused("nodes", said.format(node=node.name, other=_named(other), time=_clock(at)))
    return list(nodes)


def _chosen(made: Reservation, pool: Pool | None, device: str, count: int) -> list[Node]:
    """Return nodes of the pool with so many devices that nothing else keeps meanwhile, the least busy first."""
    wanted = Q(kind__iexact=device) | Q(model__icontains=device)
    has = Device.objects.filter(wanted, present=True, node__pools=pool, node__state__in=SERVES).exclude(
        health__in=[Health.UNHEALTHY, Health.QUARANTINED, Health.CORDONED, Health.LOST]
    )
    sizes = dict(has.order_by().values_list("node").annotate(size=Count("pk")))
    live = Count("parts", filter=Q(parts__ended_at=None))
    nodes = list(
        Node.objects.filter(pk__in=sizes).prefetch_related("pools").annotate(live=live).order_by("live", "sort_key")
    )
    others = _others(nodes)
    found: list[Node] = []
    have = 0
    for node in nodes:
        if have >= count:
            break
        if _clash(made, node, others) is None:
            found.append(node)
            have += sizes[node.pk]
    if have < count or not found:
        said = _("pool {pool} has {have} {device} on nodes that nothing else keeps at that time; {count} are asked for")
        text = said.format(pool=pool.name if pool else "", have=have, device=device, count=count)
        raise EntryRefused("count", text)
    return found


def _others(nodes: Collection[Node]) -> list[tuple[CalendarEntry, set[object], set[object]]]:
    """Return the entries ahead on these nodes, each with its nodes and pools."""
    now = timezone.now()
    found: list[tuple[CalendarEntry, set[object], set[object]]] = [
        (one, {node.pk for node in one.nodes.all()}, set()) for one in ahead(now).filter(nodes__in=nodes).distinct()
    ]
    return found + [(one, {one.node_id}, {one.pool_id}) for one in maintenance.ahead(now)]


def _clash(
    made: Reservation, node: Node, others: Sequence[tuple[CalendarEntry, set[object], set[object]]]
) -> tuple[CalendarEntry, datetime] | None:
    pools = {pool.pk for pool in node.pools.all()}
    for other, nodes, of in others:
        if other != made and (node.pk in nodes or pools & of) and (at := calendar.overlap(made, other)):
            return other, at
    return None


def _named(entry: CalendarEntry) -> str:
    if isinstance(entry, Reservation):
        return _("reservation {name}").format(name=entry.name)
    assert isinstance(entry, MaintenanceWindow)
    return _("the maintenance of {what}").format(what=entry.of)


def _clock(at: datetime) -> str:
    return f"{timezone.localtime(at, timezone.get_current_timezone()):%Y-%m-%d %H:%M %Z}"


def cancel(made: Reservation, actor: str) -> Reservation:
    """Cancel a reservation, also one that has begun: its jobs that wait, wait on. Raises NodeRefused if it is over."""
    now = timezone.now()
    with transaction.atomic():
        changed = Reservation.objects.filter(calendar.not_ended(now), pk=made.pk).update(
            cancelled_at=now, cancelled_by=actor
        )
        if not changed:
            raise _over(made)
        audit.record("reservation.cancel", made, after={"cancelled_by": actor})
        calendar.announce()
    return rows().get(pk=made.pk)


def refusal_for(user: User) -> Callable[[str, Project, Pool], str]:
    """Return a function that tells why a job of this user in a project and pool may not use a reservation; empty if it
    may."""

    def refusal(name: str, project: Project, pool: Pool) -> str:
        found = ahead(timezone.now()).filter(name=name).first()
        if found is None or not holds(found, user, project):
            said = _("project {project} holds no reservation {name} that is still ahead")
            return said.format(project=project.name, name=name)
        if not found.nodes.filter(pools=pool).exists():
            return _("reservation {name} has no node of pool {pool}").format(name=name, pool=pool.name)
        return ""

    return refusal


def holds(made: Reservation, user: User, project: Project) -> bool:
    """Return whether jobs of this user in this project may use the reservation."""
    return made.project_id == project.pk and (not made.users.all() or user in made.users.all())
