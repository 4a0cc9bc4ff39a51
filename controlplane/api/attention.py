"""What needs somebody: signs with a stable code and parameters for programs, and sentences for people.

The sentences are in the language of the request; over the browsers' socket, which names none, they are English.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
from django.utils import timezone
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_noop as _

from controlplane.access import permissions
from controlplane.access.models import User
from controlplane.api.held_idle import IDLE_FOR
from controlplane.fleet import alarms, maintenance
from controlplane.fleet import models as fleet
from controlplane.jobs import amounts
from controlplane.jobs import models as rows
from controlplane.jobs.values import spoken
from controlplane.pages.words import note_text, reason_text
from scheduler.core.lifecycle import NodeState

MOST_SIGNS = 7
MOST_SLOW = 2
MOST_WINDOWS = 2
WINDOWS_AHEAD = timedelta(days=7)
BLOCKED_FOR = timedelta(hours=1)
STARTING_FOR = timedelta(minutes=5)


class Sign(msgspec.Struct, frozen=True):
    """Something that needs attention. ``level`` is critical, warning or note.

    ``code`` and ``params`` stay what they are in every language; ``title``, ``detail`` and ``action`` are sentences.
    """

    level: str
    code: str
    params: dict[str, Any]
    title: str
    detail: str
    href: str
    action: str


@dataclass(frozen=True, slots=True)
class Form:
    """How a code is told. ``detail`` stands where nobody gave a reason of their own; it may be empty."""

    level: str
    title: str
    detail: str
    action: str


FORMS: Final[Mapping[str, Form]] = {
    "NodeLost": Form("critical", _("Node {node} is lost"), _("it does not report any more"), _("Look at the node")),
    "NodeSuspect": Form("warning", _("Node {node} is late"), _("its reports are late"), _("Look at the node")),
    "NodeDraining": Form("note", _("Node {node} is draining"), "", _("Look at the node")),
    "MaintenanceNow": Form("warning", _("{what} is out of service until {until} UTC"), "", _("Look at the nodes")),
    "MaintenanceAhead": Form(
        "note", _("{what} will be out of service from {start} to {until} UTC"), "", _("Look at the nodes")
    ),
    "DiskPressure": Form(
        "warning",
        _("The disk of node {node} is full"),
        _("it starts nothing new until there is room"),
        _("Look at the node"),
    ),
    "NodeSetAside": Form("critical", _("Node {node} is set aside"), "", _("Look at the node")),
    "InventoryRefused": Form("critical", _("What node {node} says it has is refused"), "", _("Look at the node")),
    "ReportRefused": Form("warning", _("Reports of node {node} are not taken whole"), "", _("Look at the node")),
    "PoolSetAside": Form("critical", _("Pool {pool} is set aside"), "", _("Look at the nodes")),
    "StageSetAside": Form("critical", _("{stage} is set aside"), "", _("Look at the queue")),
    "CycleFails": Form("critical", _("The scheduler fails"), "", _("Look at the decisions")),
    "DecisionsUnwritten": Form("warning", _("Decisions are not written down"), "", _("Look at the decisions")),
    "InvariantBroken": Form("critical", _("The record breaks invariant {id}"), "", _("Look at the decisions")),
    "DeviceUnhealthy": Form("critical", _("{kind} {index} of {node} is {health}"), "", _("Look at the device")),
    "DeviceHeldIdle": Form(
        "warning",
        _("{kind} {index} of {node} is held and idle"),
        _("#{job} has not used it for {minutes} minutes"),
        _("Look"),
    ),
    # As above, for those who may not know which job it is.
    "DeviceHeldIdleByOther": Form(
        "warning",
        _("{kind} {index} of {node} is held and idle"),
        _("a job has not used it for {minutes} minutes"),
        _("Look"),
    ),
    "SlowStart": Form(
        "warning",
        _("{stage} of #{job} is slow to start"),
        _("it was placed more than {span} ago and does not run yet"),
        _("Look at the job"),
    ),
    "LongWait": Form(
        "warning",
        _("{stage} of #{job} has waited for more than {span}"),
        _("it has not been looked at yet"),
        _("See why"),
    ),
}
_LEVELS: Final = ("critical", "warning", "note")


@dataclass(frozen=True, slots=True)
class Held:
    """A device as this user may see it: ``state`` is the map's, ``job`` the holder's number or None."""

    row: fleet.Device
    state: str
    job: int | None


def attention(nodes: list[fleet.Node], devices: Iterable[Held], user: User) -> list[Sign]:
    """What needs somebody, the worst first."""
    signs = [*_of_alarms(user), *_of_nodes(nodes), *_of_windows(), *_of_devices(nodes, devices), *_of_stages(user)]
    return sorted(signs, key=lambda sign: _LEVELS.index(sign.level))[:MOST_SIGNS]


def _sign(code: str, href: str, params: Mapping[str, Any], reason: str = "") -> Sign:
    """The sign with this code; ``reason`` is somebody's own words and stays as it is."""
    form = FORMS[code]
    shown = dict(params)
    if "span_s" in params and not (get_language() or "en").startswith("en"):
        shown["span"] = amounts.span(params["span_s"])
    detail = reason or (gettext(form.detail).format_map(shown) if form.detail else "")
    title = gettext(form.title).format_map(shown)
    return Sign(form.level, code, dict(params), title, detail, href, gettext(form.action))


def _of_nodes(nodes: list[fleet.Node]) -> Iterable[Sign]:
    codes = {NodeState.LOST: "NodeLost", NodeState.SUSPECT: "NodeSuspect", NodeState.DRAINING: "NodeDraining"}
    for node in nodes:
        href = f"/nodes/{node.name}"
        if code := codes.get(NodeState(node.state)):
            yield _sign(code, href, {"node": node.name}, node.reason)
        if node.conditions.get("disk_pressure"):
            yield _sign("DiskPressure", href, {"node": node.name})


# By kind of alarm: the sign, what its parameter is called, and where it leads.
_ALARMS: Final[Mapping[str, tuple[str, str, str]]] = {
    alarms.INVENTORY: ("InventoryRefused", "node", "/nodes/{subject}"),
    alarms.REPORT: ("ReportRefused", "node", "/nodes/{subject}"),
    alarms.NODE: ("NodeSetAside", "node", "/nodes/{subject}"),
    alarms.POOL: ("PoolSetAside", "pool", "/nodes?pool={subject}"),
    alarms.STAGE: ("StageSetAside", "stage", "/jobs?state=PENDING"),
    alarms.CYCLE: ("CycleFails", "what", "/decisions"),
    alarms.RECORD: ("DecisionsUnwritten", "what", "/decisions"),
    alarms.INVARIANT: ("InvariantBroken", "id", "/decisions"),
}


def _of_alarms(user: User) -> Iterable[Sign]:
    """What was set aside: of nodes and pools for everybody, the rest, which may name any job, for staff."""
    kinds = alarms.KINDS if permissions.is_staff(user) else (*alarms.OF_NODES, alarms.POOL)
    for alarm in fleet.Alarm.objects.filter(kind__in=kinds)[:MOST_SIGNS]:
        code, name, href = _ALARMS[alarm.kind]
        params = {name: alarm.subject, "times": alarm.times, "since": alarm.since.isoformat(timespec="seconds")}
        yield _sign(code, href.format(subject=alarm.subject), params, alarm.says)


def _of_windows() -> Iterable[Sign]:
    """The next maintenance windows."""
    now = timezone.now()
    for window in maintenance.ahead(now).filter(starts_at__lt=now + WINDOWS_AHEAD)[:MOST_WINDOWS]:
        node, pool = window.node, window.pool
        what = gettext("Node {name}") if node else gettext("Pool {name}")
        name = node.name if node else pool.name if pool else ""
        params = {
            "what": what.format(name=name),
            "node": node.name if node else None,
            "pool": pool.name if pool else None,
            "start": window.starts_at.strftime("%m-%d %H:%M"),
            "until": window.ends_at.strftime("%m-%d %H:%M"),
            "id": window.pk,
        }
        code = "MaintenanceAhead" if window.starts_at > now else "MaintenanceNow"
        yield _sign(code, f"/nodes/{name}" if node else f"/nodes?pool={name}", params, window.reason)


def _of_devices(nodes: list[fleet.Node], devices: Iterable[Held]) -> Iterable[Sign]:
    names: dict[uuid.UUID, str] = {node.id: node.name for node in nodes}
    minutes = int(IDLE_FOR.total_seconds() // 60)
    for held in devices:
        device, href = held.row, f"/devices/{held.row.uuid}"
        who = {"kind": device.kind.upper(), "index": device.index, "node": names[device.node_id], "uuid": device.uuid}
        if held.state == "unhealthy":
            yield _sign("DeviceUnhealthy", href, {**who, "health": device.health}, note_text(device.health_reason))
        elif held.state == "held_idle" and held.job:
            yield _sign("DeviceHeldIdle", f"/jobs/{held.job}", {**who, "job": held.job, "minutes": minutes})
        elif held.state == "held_idle":
            yield _sign("DeviceHeldIdleByOther", href, {**who, "minutes": minutes})


def _of_stages(user: User) -> Iterable[Sign]:
    now, mine = timezone.now(), permissions.visible_jobs(user, "job__")
    slow = rows.Stage.objects.filter(
        mine, state="STARTING", attempts__ended_at=None, attempts__created_at__lt=now - STARTING_FOR
    )
    for stage in slow.select_related("job").order_by("job__number")[:MOST_SLOW]:
        yield _of_stage("SlowStart", stage, STARTING_FOR)
    head = rows.Stage.objects.filter(mine, state="PENDING", eligible_at__lt=now - BLOCKED_FOR).select_related("job")
    for stage in head.order_by("-job__priority", "eligible_at")[:1]:
        yield _of_stage("LongWait", stage, BLOCKED_FOR, stage.reasons[0] if stage.reasons else None)


def _of_stage(code: str, stage: rows.Stage, span: timedelta, reason: Mapping[str, Any] | None = None) -> Sign:
    seconds = span.total_seconds()
    params = {"stage": stage.name, "job": stage.job.number, "span": spoken(seconds), "span_s": seconds}
    if reason:
        params["reason"] = reason["code"]
    return _sign(code, f"/jobs/{stage.job.number}", params, reason_text(reason))
