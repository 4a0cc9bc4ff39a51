"""Search: pages, actions, and what the record knows by name; the command palette shows the same results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit, may
from controlplane.pages.shell import LIVE_HEADER, PLACES, page, reader
from controlplane.queries import search
from controlplane.queries.jobs import visible
from scheduler.core.model.lifecycle import FINAL

PALETTE: Final = "palette"


class Command(NamedTuple):
    """A page or an action. Without ``permit`` it is everybody's; ``staff`` opens the administration."""

    title: Any
    path: str
    icon: str
    permit: Permit | None = None
    for_staff: bool = False


PAGES: Final = (
    *(Command(place.title, place.path, place.name) for place in PLACES),
    Command(gettext_lazy("Topology"), "/topology", "nodes"),
    Command(gettext_lazy("Schedules"), "/schedules", "timeline"),
    Command(gettext_lazy("Templates"), "/templates", "jobs"),
    Command(gettext_lazy("Secrets of your projects"), "/secrets", "s-held"),
    Command(gettext_lazy("Webhooks"), "/webhooks", "link"),
    Command(gettext_lazy("Service accounts"), "/service-accounts", "api"),
    Command(gettext_lazy("Your user page"), "/user", "profiles"),
    Command(gettext_lazy("Health"), "/health", "health"),
    Command(gettext_lazy("Retention"), "/retention", "s-suspended"),
    Command(gettext_lazy("Documentation"), "/docs/", "docs"),
    Command(gettext_lazy("API reference"), "/api/v1/docs", "api"),
    Command(gettext_lazy("Audit log"), "/audit", "audit", Permit.SEE_AUDIT),
    Command(gettext_lazy("Admin"), "/admin/", "admin", for_staff=True),
)
# The part of an address after # opens the dialog of that name.
ACTIONS: Final = (
    Command(gettext_lazy("Submit a job"), "/jobs/new", "plus"),
    Command(gettext_lazy("Add a node…"), "/nodes#ask-join", "plus"),
    Command(gettext_lazy("Plan maintenance"), "/calendar/new/maintenance", "calendar", Permit.PLAN_MAINTENANCE),
    Command(gettext_lazy("Reserve nodes"), "/calendar/new/reservation", "calendar", Permit.PLAN_RESERVATIONS),
    Command(gettext_lazy("Make an access token"), "/user#tokens", "plus"),
    Command(gettext_lazy("Change your password"), "/user#password", "s-held"),
)
# What a word before the name of a node does with it, in which states, and the dialog on its page.
OF_NODES: Final = (
    ("drain", gettext_lazy("drain"), gettext_lazy("Drain {name}…"), {"READY"}, "ask-drain"),
    ("resume", gettext_lazy("resume"), gettext_lazy("Resume {name}…"), {"DRAINING", "DRAINED"}, "ask-resume"),
)
KINDS: Final = {
    "job": (gettext_lazy("Jobs"), "jobs"),
    "array": (gettext_lazy("Arrays"), "jobs"),
    "node": (gettext_lazy("Nodes"), "nodes"),
    "device": (gettext_lazy("Devices"), ""),
    "pool": (gettext_lazy("Pools"), "overview"),
    "project": (gettext_lazy("Projects"), "quota"),
    "user": (gettext_lazy("People"), "usage"),
}


def _named(commands: tuple[Command, ...], user: User, text: str) -> Iterator[dict[str, Any]]:
    """Those of these commands that this user may use and whose title contains ``text``, in either language."""
    for command in commands:
        if (command.permit and not may(user, command.permit)) or (command.for_staff and not user.is_staff):
            continue
        with translation.override("en"):
            english = str(command.title)
        if text in english.lower() or text in str(command.title).lower():
            yield {"name": str(command.title), "path": command.path, "icon": command.icon}


def _on_nodes(user: User, text: str, most: int) -> Iterator[dict[str, Any]]:
    """What operators may do with the nodes that ``text`` names, after the name of the action or without it."""
    if not may(user, Permit.OPERATE_NODES):
        return
    for english, word, title, states, dialog in OF_NODES:
        name = text.removeprefix(english).removeprefix(str(word).lower()).strip()
        for node in search.nodes(name, most) if name else ():
            if node.state in states:
                yield {"name": str(title).format(name=node.name), "path": f"{node.path}#{dialog}", "icon": "nodes"}


def _on_job(user: User, number: int) -> Iterator[dict[str, Any]]:
    job = visible(user).filter(number=number).first()
    if job and job.state not in FINAL and permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id):
        name = _("Cancel job #{number}…").format(number=number)
        yield {"name": name, "path": f"/jobs/{number}#ask-cancel", "icon": "s-cancelled"}


def found(user: User, words: str, most: int) -> list[dict[str, Any]]:
    """What ``words`` find, by group; without words all pages and actions."""
    text = words.strip().lower()[: search.LONGEST]
    actions = [*_named(ACTIONS, user, text), *_on_nodes(user, text, most)]
    if text.removeprefix("#").isdecimal():
        actions += _on_job(user, int(text.removeprefix("#")[:18]))
    groups = {_("Pages"): list(_named(PAGES, user, text))}
    for one in search.search(user, words, most).results:
        title, icon = KINDS[one.kind]
        groups.setdefault(str(title), []).append(
            {
                "name": one.name,
                "detail": one.detail,
                "path": one.path,
                "icon": icon,
                "device": one.name.rpartition(" ")[2].rstrip("0123456789"),
                "kind": one.kind,
                "state": one.state,
            }
        )
    groups[_("Actions")] = actions
    return [{"title": title, "rows": rows} for title, rows in groups.items() if rows]


@login_required
def show(request: HttpRequest) -> HttpResponse:
    """The page of results; for the palette only its list."""
    user, words = reader(request), request.GET.get("q", "")[: search.LONGEST]
    if request.headers.get(LIVE_HEADER) == PALETTE:
        response = render(
            request, "parts/found.html", {"groups": found(user, words, 6), "words": words, "palette": True}
        )
        response["Cache-Control"] = "no-store"
        return response
    return page(
        request,
        "search.html",
        {"groups": found(user, words, search.MOST), "words": words},
        place="search",
        crumbs=[(_("Search"), "")],
    )
