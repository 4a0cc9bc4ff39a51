"""Pages of the entries of the calendar: what one keeps and meets, and the forms by which operators plan and change it.

A form is sent twice: first the page answers what the entry would keep and which running stages it would meet, then the
same fields are saved. Fields that were changed in between are shown again first.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User, slug
from controlplane.accounts.permissions import Permit
from controlplane.fleet import calendar, maintenance
from controlplane.fleet import reservations as kept
from controlplane.fleet.calendar import EntryRefused
from controlplane.fleet.models import CalendarEntry, MaintenanceWindow, Node, Reservation
from controlplane.fleet.service import NodeRefused
from controlplane.natural import natural_key
from controlplane.pages.calendar import path_of
from controlplane.pages.shell import page, reader
from controlplane.pools.models import Pool
from controlplane.queries import maintenance as windows
from controlplane.queries import reservations
from controlplane.queries.refusals import Unseen

COMMON: Final = ("starts_at", "ends_at", "cron", "time_zone", "minutes", "reason")
FIELDS: Final = {
    "maintenance": ("node", "pool", *COMMON),
    "reservation": ("name", "project", "users", "nodes", "pool", "device", "count", *COMMON),
}
MOST_NAMED: Final = 1_000
LONGEST: Final = 20_000
NEXT: Final = 5
PERMITS: Final = {
    "maintenance": (Permit.PLAN_MAINTENANCE, Permit.CANCEL_MAINTENANCE),
    "reservation": (Permit.PLAN_RESERVATIONS, Permit.CANCEL_RESERVATIONS),
}


# -- reading the fields


def _asked(request: HttpRequest, kind: str) -> dict[str, str]:
    return {name: request.POST.get(name, "").strip()[:LONGEST] for name in FIELDS[kind]}


def _moment(asked: Mapping[str, str], field: str) -> datetime:
    try:
        told = datetime.fromisoformat(asked[field])
        if told.tzinfo is None:
            told = told.replace(tzinfo=timezone.get_current_timezone())
        told.utctimetuple()
    except (ValueError, OverflowError):
        raise EntryRefused(field, _("say a date and a time, such as 2027-01-31T18:00")) from None
    return told


def _number(asked: Mapping[str, str], field: str, most: int) -> int:
    text = asked[field]
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= most):
        raise EntryRefused(field, _("say a whole number from 1 to {most}").format(most=most))
    return int(text)


def _named(model: Any, field: str, names: list[str]) -> list[Any]:
    key = "username" if model is User else "name"
    found = {getattr(row, key): row for row in model.objects.filter(**{f"{key}__in": names[:MOST_NAMED]})}
    if missing := next((name for name in names if name not in found), None):
        unknown = {
            "node": _("there is no node {name}"), "nodes": _("there is no node {name}"),
            "pool": _("there is no pool {name}"), "project": _("there is no project {name}"),
            "users": _("there is no user {name}"),
        }  # fmt: skip
        raise EntryRefused(field, unknown[field].format(name=missing[:63]))
    return [found[name] for name in dict.fromkeys(names)]


def _one(model: Any, field: str, name: str) -> Any:
    return _named(model, field, [name])[0] if name else None


def _several(asked: Mapping[str, str], field: str) -> list[str]:
    return asked[field].replace(",", " ").split()


def _times(asked: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: _moment(asked, name) for name in ("starts_at", "ends_at")}
    found |= {"reason": asked["reason"], "cron": asked["cron"][:101], "time_zone": asked["time_zone"][:64] or "UTC"}
    found["lasts_s"] = _number(asked, "minutes", 43_200) * 60 if asked["minutes"] else None
    if len(found["cron"]) > 100 or len(found["time_zone"]) > 63:
        raise EntryRefused("cron", _("a cron line has five fields and at most 100 characters"))
    return found


def _tried(request: HttpRequest, kind: str, row: Any, asked: Mapping[str, str], only_tried: bool) -> Any:
    """Plan or change the entry, or only try it. Raises EntryRefused with the field at fault, and NodeRefused."""
    given, actor = _times(asked), reader(request).get_username()
    if kind == "maintenance":
        given |= {"node": _one(Node, "node", asked["node"]), "pool": _one(Pool, "pool", asked["pool"])}
        if row is not None:
            return maintenance.change(row, only_tried=only_tried, **given)
        return maintenance.plan(**given, actor=actor, only_tried=only_tried)
    given["users"] = _named(User, "users", _several(asked, "users"))
    given["nodes"] = _named(Node, "nodes", _several(asked, "nodes"))
    if row is not None:
        return kept.change(row, only_tried=only_tried, **given)
    if not asked["project"]:
        raise EntryRefused("project", _("choose the project that it is for"))
    given["project"] = _one(Project, "project", asked["project"])
    given["pool"] = _one(Pool, "pool", asked["pool"])
    given["count"] = _number(asked, "count", 1_000_000) if asked["count"] else None
    try:
        slug(asked["name"])
    except ValidationError as error:
        raise EntryRefused("name", error.messages[0]) from None
    return kept.plan(**given, name=asked["name"], device=asked["device"][:120], actor=actor, only_tried=only_tried)


# -- what an entry meets


def _effect(row: Any, user: User) -> dict[str, Any]:
    """The nodes that an entry keeps, its next times, and the running stages that may run into it."""
    now = timezone.now()
    starts_at, _ends_at = calendar.next_time(row, now)
    if isinstance(row, MaintenanceWindow):
        of = Q(node=row.node_id) if row.node_id else Q(node__pools=row.pool_id)
        nodes = Node.objects.filter(pk=row.node_id) if row.node_id else Node.objects.filter(pools=row.pool_id)
        names = list(nodes.order_by("sort_key").values_list("name", flat=True)[:MOST_NAMED])
        stages, hidden = windows.affected(of, starts_at, user)
    else:
        kept_nodes = list(row.nodes.all())
        names = [node.name for node in kept_nodes]
        where = Q(node__in=[node.pk for node in kept_nodes])
        stages, hidden = windows.affected(where, starts_at, user, row.name)
    times = list(islice(calendar.times(row, now, row.ends_at), NEXT))
    return {"nodes": names, "times": times, "stages": stages[:200], "hidden": hidden, "count": len(stages)}


# -- pages


def _found(request: HttpRequest, kind: str, key: Any) -> Any:
    rows: Any = windows.windows().filter(pk=key) if kind == "maintenance" else kept.rows().filter(name=key)
    row = rows.first()
    if row is None:
        said = _("maintenance window {name}") if kind == "maintenance" else _("reservation {name}")
        raise Unseen(said.format(name=key))
    return row


def _permitted(request: HttpRequest, kind: str, which: int) -> None:
    if not permissions.may(reader(request), PERMITS[kind][which]):
        raise PermissionDenied


def _form(kind: str, row: Any) -> dict[str, Any]:
    """What a form of this kind offers."""
    return {
        "kind": kind,
        "zone": timezone.get_current_timezone_name(),
        "pools": sorted(Pool.objects.values_list("name", flat=True), key=natural_key),
        "projects": sorted(Project.objects.values_list("name", flat=True), key=natural_key),
        "known_nodes": list(Node.objects.order_by("sort_key").values_list("name", flat=True)[:500]),
        "row": row,
    }


def _local(at: datetime) -> str:
    return f"{timezone.localtime(at):%Y-%m-%dT%H:%M}"


def _values(row: CalendarEntry) -> dict[str, str]:
    """The fields of an entry as a form has them."""
    found = {
        "starts_at": _local(row.starts_at),
        "ends_at": _local(row.ends_at),
        "cron": row.cron,
        "time_zone": row.time_zone,
        "minutes": str(-(-row.lasts_s // 60)) if row.lasts_s else "",
        "reason": row.reason,
    }
    if isinstance(row, MaintenanceWindow):
        return found | {"node": row.node.name if row.node else "", "pool": row.pool.name if row.pool else ""}
    assert isinstance(row, Reservation)
    return found | {
        "name": row.name,
        "project": row.project.name,
        "users": ", ".join(user.get_username() for user in row.users.all()),
        "nodes": ", ".join(node.name for node in row.nodes.all()),
    }


def _seen(request: HttpRequest, kind: str, asked: Mapping[str, str]) -> str:
    """What says that these fields were shown with their effect to this user."""
    text = "\0".join([str(reader(request).pk), kind, *(f"{name}={asked[name]}" for name in FIELDS[kind])])
    return salted_hmac("calendar", text, algorithm="sha256").hexdigest()


def _answer(request: HttpRequest, kind: str, row: Any, status: int = 200, **more: Any) -> HttpResponse:
    title = _title(kind, row)
    values = {
        "title": title,
        "asked": _values(row) if row is not None else {},
        "may_change": row is None or permissions.may(reader(request), PERMITS[kind][1]),
        "is_over": row is not None and (row.cancelled_at is not None or row.ends_at <= timezone.now()),
        **_form(kind, row),
        **more,
    }
    if row is not None:
        user = reader(request)
        values["shown"] = windows.shown([row])[0] if kind == "maintenance" else reservations.shown([row], user)[0]
        values["now_effect"] = _effect(row, user)
        if not values["may_change"] or values["is_over"]:
            values["asked"] = {}
    return page(
        request,
        "calendar_entry.html",
        values,
        place="calendar",
        crumbs=[(_("Calendar"), "/calendar"), (title, "")],
        status=status,
    )


def _title(kind: str, row: Any) -> str:
    if row is None:
        return _("New maintenance window") if kind == "maintenance" else _("New reservation")
    if kind == "reservation":
        return _("Reservation {name}").format(name=row.name)
    name = row.node.name if row.node else row.pool.name
    return (_("Maintenance of node {name}") if row.node else _("Maintenance of pool {name}")).format(name=name)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, kind: str) -> HttpResponse:
    """The form of a new entry; a POST tells its effect, and plans it once that was seen."""
    _permitted(request, kind, 0)
    if request.method != "POST":
        hour = timezone.localtime(timezone.now() + timedelta(hours=1)).replace(minute=0)
        asked = {
            "starts_at": _local(hour),
            "ends_at": _local(hour + timedelta(hours=2)),
            "time_zone": timezone.get_current_timezone_name(),
            "node": request.GET.get("node", "")[:63],
            "nodes": request.GET.get("node", "")[:63],
        }
        return _answer(request, kind, None, asked=asked)
    return _sent(request, kind, None)


@login_required
@require_safe
def one(request: HttpRequest, kind: str, key: Any) -> HttpResponse:
    return _answer(request, kind, _found(request, kind, key), done=request.GET.get("done", "")[:20])


@login_required
@require_POST
def change(request: HttpRequest, kind: str, key: Any) -> HttpResponse:
    """Tells what the changed entry would meet, and changes it once that was seen."""
    row = _found(request, kind, key)
    _permitted(request, kind, 1)
    return _sent(request, kind, row)


@login_required
@require_POST
def end(request: HttpRequest, kind: str, key: Any) -> HttpResponse:
    """Ends an entry that has begun, or cancels one that has not."""
    row = _found(request, kind, key)
    _permitted(request, kind, 1)
    done: Any = maintenance.cancel if kind == "maintenance" else kept.cancel
    try:
        done(row, reader(request).get_username())
    except NodeRefused as error:
        return _answer(request, kind, row, 409, faults={"form": str(error)})
    return redirect(f"{_path(kind, row)}?done=ended")


def _sent(request: HttpRequest, kind: str, row: Any) -> HttpResponse:
    asked = _asked(request, kind)
    seen = _seen(request, kind, asked)
    is_save = request.POST.get("do") == "save" and request.POST.get("seen") == seen
    try:
        made = _tried(request, kind, row, asked, only_tried=not is_save)
    except EntryRefused as error:
        field = "minutes" if error.field == "lasts_s" else error.field
        return _answer(request, kind, row, 422, asked=asked, faults={field: str(error)})
    except NodeRefused as error:
        return _answer(request, kind, row, 409, asked=asked, faults={"form": str(error)})
    if is_save:
        return redirect(f"{_path(kind, made)}?done={'planned' if row is None else 'changed'}")
    return _answer(request, kind, row, asked=asked, effect=_effect(made, reader(request)), seen=seen)


def _path(kind: str, row: Any) -> str:
    return path_of(kind, row.pk, getattr(row, "name", ""))
