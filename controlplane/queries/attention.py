"""Warnings that need a person: a stable code with parameters for programs, and a sentence for people.

The sentences are in the language of the request; on the browsers' socket, which has none, they are English.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from controlplane import amounts
from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.clauses import in_words
from controlplane.fleet import alarms, calendar, maintenance
from controlplane.fleet import models as fleet
from controlplane.jobs import models as rows
from controlplane.jobs.held_idle import IDLE_FOR
from controlplane.jobs.reasons import reason_text
from controlplane.jobs.values import spoken
from controlplane.pools.models import BUDGET_LEVELS
from controlplane.providers.models import Pilot
from controlplane.queries import budgets
from scheduler.core.model.lifecycle import NodeState

MOST_SIGNS = 7
MOST_SLOW = 2
MOST_STUCK = 3
MOST_WINDOWS = 2
WINDOWS_AHEAD = timedelta(days=7)
BLOCKED_FOR = timedelta(hours=1)
STARTING_FOR = timedelta(minutes=5)
HELD_FOR = timedelta(days=1)


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
    """Level, title, detail and action of a code. ``detail`` is used if there is no specific reason; it may be empty."""

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
    "NodeCopied": Form("critical", _("Two agents have the identity of node {node}"), "", _("Look at the node")),
    "NodeForgets": Form("critical", _("Node {node} has forgotten parts that may be alive"), "", _("Look at the node")),
    "InventoryRefused": Form("critical", _("What node {node} says it has is refused"), "", _("Look at the node")),
    "ReportRefused": Form("warning", _("Reports of node {node} are not taken whole"), "", _("Look at the node")),
    "MeasurementRefused": Form("warning", _("Node {node} measures what cannot be"), "", _("Look at the node")),
    "LocalJobsStay": Form(
        "warning", _("Jobs that were submitted on node {node} itself are not in the record"), "", _("Look at the node")
    ),
    "NodeAhead": Form("critical", _("Node {node} has seen newer orders than the record"), "", _("Look at the node")),
    "MassLoss": Form("critical", _("Most nodes fell silent together"), "", _("Look at the nodes")),
    "PoolSetAside": Form("critical", _("Pool {pool} is set aside"), "", _("Look at the nodes")),
    "ProfileUnusable": Form("warning", _("Pool {pool} has no usable profile"), "", _("Look at the profiles")),
    "ShadowUnusable": Form("warning", _("Pool {pool} has no usable shadow profile"), "", _("Look at the profiles")),
    "StageSetAside": Form("critical", _("{stage} is set aside"), "", _("Look at the queue")),
    "CycleFails": Form("critical", _("The scheduler fails"), "", _("Look at the decisions")),
    "DiskFull": Form(
        "warning",
        _("The control plane takes no uploads and no logs: its disk is nearly full"),
        "",
        _("Look at the overview"),
    ),
    "DecisionsUnwritten": Form("warning", _("Decisions are not written down"), "", _("Look at the decisions")),
    "ProviderFails": Form("critical", _("Provider {provider} brings no nodes"), "", _("Look at the providers")),
    "SiteFails": Form("critical", _("Site {site} cannot be asked"), "", _("Look at the sites")),
    "InvariantBroken": Form("critical", _("The record breaks invariant {id}"), "", _("Look at the decisions")),
    "BudgetUsedUp": Form(
        "warning",
        _("Project {project} has used up budget {budget}"),
        _("{used} of {hours} hours"),
        _("Look at the budget"),
    ),
    "BudgetNearlyUsedUp": Form(
        "note",
        _("Project {project} has used most of budget {budget}"),
        _("{used} of {hours} hours"),
        _("Look at the budget"),
    ),
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
    # The stage cannot start without somebody's action; the detail is the action for its reason.
    "NeverStarts": Form(
        "critical",
        _("{stage} of #{job} will never start as things are"),
        "",
        _("See why"),
    ),
    "HeldLong": Form(
        "note",
        _("{stage} of #{job} has been on hold for {span}"),
        _("held by {who}; release it, or cancel it"),
        _("Look at the job"),
    ),
    "LongWait": Form(
        "warning",
        _("{stage} of #{job} has waited for more than {span}"),
        _("it has not been looked at yet"),
        _("See why"),
    ),
}
# Wait reasons that end only by somebody's action, each with that action.
CURES: Final[Mapping[str, str]] = {
    "DependencyNeverSatisfied": _("cancel it, or submit it again with the stage that it needs"),
    "InvalidSpec": _("submit it again, corrected"),
    "SecretMissing": _("set this secret of the project again, or submit it without"),
    "BundleUnavailable": _("upload its code again and submit it with that"),
    "ImageUnavailable": _("name an image that the nodes can fetch"),
    "NoMatchingDevice": _("ask for devices that the pool has, or add a node that has them"),
    "ExceedsClusterMax": _("ask for less, or add nodes to the pool"),
    "MountMissing": _("declare the folder on more nodes with the agent's --mount, or leave the mount out"),
    "DataResidency": _("let its data leave the site, or add nodes there"),
    "NodesAvoided": _("let it run on more nodes, or ask for fewer"),
    "NodesRestricted": _("let it run on more nodes, or ask for fewer"),
    "ExceedsQuotaMax": _("ask for less, or have the hard limit of the project raised"),
    "PoolRefused": _("ask an operator to allow the pool to the project, or submit it to another one"),
    "PoolStopped": _("start the pool again, or submit it to another one"),
}
_LEVELS: Final = ("critical", "warning", "note")


@dataclass(slots=True)
class _Signs:
    """Signs of one source, and how many more there are than listed."""

    signs: list[Sign]
    more: int = 0


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device as this user may see it: ``state`` is that of the device map, ``job`` the number of the holder's job or
    None."""

    row: fleet.Device
    state: str
    job: int | None


def attention(nodes: list[fleet.Node], devices: Iterable[HeldDevice], user: User) -> tuple[list[Sign], int]:
    """Return the signs to show, most urgent first, and how many there are in total."""
    of_alarms, of_windows, of_stages = _of_alarms(user), _of_windows(), _of_stages(user)
    signs = [
        *of_alarms.signs,
        *_of_nodes(nodes),
        *of_windows.signs,
        *_of_budgets(user),
        *_of_devices(nodes, devices),
        *of_stages.signs,
    ]
    ordered = sorted(signs, key=lambda sign: _LEVELS.index(sign.level))
    return ordered[:MOST_SIGNS], len(signs) + of_alarms.more + of_windows.more + of_stages.more


def _sign(code: str, href: str, params: Mapping[str, Any], reason: str = "") -> Sign:
    """Make the sign with this code; ``reason`` is a specific or free text and replaces the detail of the code."""
    form = FORMS[code]
    shown = dict(params)
    if "span_s" in params:
        shown["span"] = amounts.span(params["span_s"])
    detail = reason or (gettext(form.detail).format_map(shown) if form.detail else "")
    title = gettext(form.title).format_map(shown)
    return Sign(form.level, code, dict(params), title, detail, href, gettext(form.action))


def _of_nodes(nodes: list[fleet.Node]) -> Iterable[Sign]:
    codes = {NodeState.LOST: "NodeLost", NodeState.SUSPECT: "NodeSuspect", NodeState.DRAINING: "NodeDraining"}
    for node in nodes:
        href = f"/nodes/{node.name}"
        if code := codes.get(NodeState(node.state)):
            yield _sign(code, href, {"node": node.name}, in_words(node.reason, node.reason_said))
        if node.conditions.get("disk_pressure"):
            yield _sign("DiskPressure", href, {"node": node.name})


# By kind of alarm: the sign, what its parameter is called, and where it leads.
_ALARMS: Final[Mapping[str, tuple[str, str, str]]] = {
    alarms.INVENTORY: ("InventoryRefused", "node", "/nodes/{subject}"),
    alarms.REPORT: ("ReportRefused", "node", "/nodes/{subject}"),
    alarms.MEASUREMENT: ("MeasurementRefused", "node", "/nodes/{subject}"),
    alarms.NODE: ("NodeSetAside", "node", "/nodes/{subject}"),
    alarms.IDENTITY: ("NodeCopied", "node", "/nodes/{subject}"),
    alarms.MEMORY: ("NodeForgets", "node", "/nodes/{subject}"),
    alarms.RESTORED: ("NodeAhead", "node", "/nodes/{subject}"),
    alarms.LOCAL: ("LocalJobsStay", "node", "/nodes/{subject}"),
    alarms.FUSE: ("MassLoss", "what", "/nodes?state=LOST"),
    alarms.POOL: ("PoolSetAside", "pool", "/nodes?pool={subject}"),
    alarms.PROFILE: ("ProfileUnusable", "pool", "/profiles"),
    alarms.SHADOW: ("ShadowUnusable", "pool", "/profiles"),
    alarms.STAGE: ("StageSetAside", "stage", "/jobs?state=PENDING"),
    alarms.CYCLE: ("CycleFails", "what", "/decisions"),
    alarms.RECORD: ("DecisionsUnwritten", "what", "/decisions"),
    alarms.INVARIANT: ("InvariantBroken", "id", "/decisions"),
    alarms.DISK: ("DiskFull", "what", "/"),
    alarms.PROVIDER: ("ProviderFails", "provider", "/providers"),
    alarms.SITE: ("SiteFails", "site", "/sites"),
}


def _of_alarms(user: User) -> _Signs:
    """Signs of alarms: those of nodes and pools for everybody, the others, which may name any job, by permission."""
    everybodys: tuple[str, ...] = (*alarms.OF_NODES, alarms.POOL, alarms.PROFILE)
    kinds = alarms.KINDS if permissions.may(user, Permit.SEE_ALARMS) else everybodys
    found = fleet.Alarm.objects.filter(kind__in=kinds)
    signs = []
    for alarm in found[:MOST_SIGNS]:
        code, name, href = _ALARMS[alarm.kind]
        params = {name: alarm.subject, "times": alarm.times, "since": alarm.since.isoformat(timespec="seconds")}
        signs.append(_sign(code, href.format(subject=alarm.subject), params, in_words(alarm.says, alarm.said)))
    return _Signs(signs, found.count() - len(signs) if len(signs) == MOST_SIGNS else 0)


def _of_windows() -> _Signs:
    """Signs of current and upcoming maintenance windows."""
    now = timezone.now()
    # The end of a pilot is planned from its start, and nobody's concern.
    pilots = Pilot.objects.exclude(state=Pilot.PilotState.GONE).exclude(window=None)
    ahead = maintenance.ahead(now).exclude(pk__in=pilots.values("window"))
    windows = ahead.filter(starts_at__lt=now + WINDOWS_AHEAD)
    soon = [one for one in windows[: 10 * MOST_WINDOWS] if calendar.next_time(one, now)[0] < now + WINDOWS_AHEAD]
    signs = list(_window_signs(soon[:MOST_WINDOWS], now))
    return _Signs(signs, windows.count() - len(signs) if len(signs) == MOST_WINDOWS else 0)


def _of_budgets(user: User) -> Iterable[Sign]:
    """Signs of the visible budgets of which most or all is used, as a worker counted last."""
    found = budgets.visible(user).filter(
        until_at__gt=timezone.now(), used_hours__gte=F("hours") * BUDGET_LEVELS[0] / 100
    )
    for one in found.order_by("project__name", "pk"):
        code = "BudgetUsedUp" if one.used_hours >= one.hours else "BudgetNearlyUsedUp"
        params = {"project": one.project.name, "budget": one.pk, "at_end": one.at_end}
        yield _sign(code, "/quota", {**params, "used": f"{one.used_hours:.4g}", "hours": f"{one.hours:.4g}"})


def _window_signs(windows: Iterable[fleet.MaintenanceWindow], now: datetime) -> Iterable[Sign]:
    for window in windows:
        node, pool = window.node, window.pool
        starts_at, ends_at = calendar.next_time(window, now)
        what = gettext("Node {name}") if node else gettext("Pool {name}")
        name = node.name if node else pool.name if pool else ""
        params = {
            "what": what.format(name=name),
            "node": node.name if node else None,
            "pool": pool.name if pool else None,
            "start": starts_at.strftime("%m-%d %H:%M"),
            "until": ends_at.strftime("%m-%d %H:%M"),
            "id": window.pk,
        }
        code = "MaintenanceAhead" if starts_at > now else "MaintenanceNow"
        yield _sign(code, f"/nodes/{name}" if node else f"/nodes?pool={name}", params, window.reason)


def _of_devices(nodes: list[fleet.Node], devices: Iterable[HeldDevice]) -> Iterable[Sign]:
    names: dict[uuid.UUID, str] = {node.id: node.name for node in nodes}
    minutes = int(IDLE_FOR.total_seconds() // 60)
    for held in devices:
        device, href = held.row, f"/devices/{held.row.uuid}"
        who = {"kind": device.kind.upper(), "index": device.index, "node": names[device.node_id], "uuid": device.uuid}
        if held.state == "unhealthy":
            yield _sign(
                "DeviceUnhealthy",
                href,
                {**who, "health": device.health},
                in_words(device.health_reason, device.health_said),
            )
        elif held.state == "held_idle" and held.job:
            yield _sign("DeviceHeldIdle", f"/jobs/{held.job}", {**who, "job": held.job, "minutes": minutes})
        elif held.state == "held_idle":
            yield _sign("DeviceHeldIdleByOther", href, {**who, "minutes": minutes})


def _of_stages(user: User) -> _Signs:
    now, mine = timezone.now(), permissions.visible_jobs(user, "job__")
    stages = rows.Stage.objects.filter(mine).select_related("job")
    found = _Signs([])

    def add_signs(chosen: QuerySet[rows.Stage], most: int, make: Callable[[rows.Stage], Sign]) -> None:
        shown = [make(stage) for stage in chosen[:most]]
        found.signs += shown
        found.more += chosen.count() - most if len(shown) == most else 0

    slow = stages.filter(state="STARTING", attempts__ended_at=None, attempts__created_at__lt=now - STARTING_FOR)
    add_signs(slow.order_by("job__number"), MOST_SLOW, lambda stage: _of_stage("SlowStart", stage, STARTING_FOR))
    any_of = Q(*(Q(reasons__contains=[{"code": code}]) for code in CURES), _connector=Q.OR)
    stuck = stages.filter(any_of, state="PENDING")
    add_signs(stuck.order_by("-job__priority", "job__number", "index"), MOST_STUCK, _never_starts)
    held = stages.filter(state="HELD", state_at__lt=now - HELD_FOR)
    add_signs(held.order_by("state_at", "job__number"), MOST_SLOW, lambda stage: _held(stage, now))
    waiting = stages.filter(state="PENDING", eligible_at__lt=now - BLOCKED_FOR)
    head = waiting.order_by("-job__priority", "eligible_at").first()
    if head is not None and not _needs_action(head):
        found.signs.append(_of_stage("LongWait", head, BLOCKED_FOR, head.reasons[0] if head.reasons else None))
    return found


def _needs_action(stage: rows.Stage) -> Mapping[str, Any] | None:
    """Return the first reason of a waiting stage that ends only by somebody's action, or None."""
    return next((reason for reason in stage.reasons if reason["code"] in CURES), None)


def _never_starts(stage: rows.Stage) -> Sign:
    """The sign of a stage that cannot start without somebody's action: the reason and the action."""
    reason = _needs_action(stage)
    assert reason is not None, "it was chosen by this reason"
    params = {"stage": stage.name, "job": stage.job.number, "reason": reason["code"]}
    why = f"{reason_text(reason)} – {gettext(CURES[reason['code']])}"
    return _sign("NeverStarts", f"/jobs/{stage.job.number}", params, why)


def _held(stage: rows.Stage, now: datetime) -> Sign:
    seconds = (now - stage.state_at).total_seconds() // 3600 * 3600 if stage.state_at else 0.0
    params = {"stage": stage.name, "job": stage.job.number, "span": spoken(seconds), "span_s": seconds}
    return _sign("HeldLong", f"/jobs/{stage.job.number}", {**params, "who": stage.held_by or "?"})


def _of_stage(code: str, stage: rows.Stage, span: timedelta, reason: Mapping[str, Any] | None = None) -> Sign:
    seconds = span.total_seconds()
    params = {"stage": stage.name, "job": stage.job.number, "span": spoken(seconds), "span_s": seconds}
    if reason:
        params["reason"] = reason["code"]
    return _sign(code, f"/jobs/{stage.job.number}", params, reason_text(reason))
