"""The frame of every page: its navigation, and the choice between whole page and live part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.queries.reading import Representation

LIVE_HEADER = "X-Yard-Part"


@dataclass(frozen=True, slots=True)
class NavigationPlace:
    """One entry of the navigation. ``key`` follows ``g`` as its keyboard shortcut; The bar on phones shows entries with
    ``on_phone``."""

    name: str
    title: Any
    path: str
    key: str
    staff_only: bool = False
    on_phone: bool = True


PLACES = (
    NavigationPlace("overview", gettext_lazy("Overview"), "/", "o"),
    NavigationPlace("queue", gettext_lazy("Queue"), "/queue", "q", on_phone=False),
    NavigationPlace("jobs", gettext_lazy("Jobs"), "/jobs", "j"),
    NavigationPlace("timeline", gettext_lazy("Timeline"), "/timeline", "t"),
    NavigationPlace("nodes", gettext_lazy("Nodes"), "/nodes", "n"),
    NavigationPlace("calendar", gettext_lazy("Calendar"), "/calendar", "c", on_phone=False),
    NavigationPlace("hardware", gettext_lazy("Hardware"), "/hardware", "h", on_phone=False),
    NavigationPlace("usage", gettext_lazy("Usage"), "/usage", "u", on_phone=False),
    NavigationPlace("quota", gettext_lazy("Quota"), "/quota", "b", on_phone=False),
    NavigationPlace("decisions", gettext_lazy("Decisions"), "/decisions", "d", on_phone=False),
    NavigationPlace("profiles", gettext_lazy("Profiles"), "/profiles", "p", on_phone=False),
    NavigationPlace("simulations", gettext_lazy("Simulations"), "/simulations", "m", on_phone=False),
)


def context(request: HttpRequest) -> dict[str, Any]:
    """Variables for every template; a context processor."""
    return {
        "places": PLACES,
        "cluster": settings.CLUSTER_NAME,
        "clusters": _clusters(request),
        "version": settings.VERSION,
        "languages": settings.LANGUAGES,
        "language": get_language() or settings.LANGUAGE_CODE,
    }


def _clusters(request: HttpRequest) -> list[tuple[str, str]]:
    """The other clusters, each with the address of this page there.

    Numbers and names of things are others there: it is the list of such things that is led to, or the overview. No part
    of the query goes along, which may name what the other one should not hear of.
    """
    others = [each for each in settings.CLUSTERS if each.name != settings.CLUSTER_NAME]
    if not others:
        return []
    match, path = request.resolver_match, request.path
    if match is None or match.kwargs or match.args or request.method not in {"GET", "HEAD"}:
        path = f"/{path.split('/')[1]}"
        try:
            resolve(path)
        except Resolver404:
            path = "/"
    return [(each.name, each.address + path) for each in others]


def page(
    request: HttpRequest,
    template: str,
    values: dict[str, Any],
    *,
    place: str,
    topics: Iterable[Representation] = (),
    every_s: float = 2.0,
    crumbs: Iterable[tuple[str, str]] = (),
    status: int = 200,
) -> HttpResponse:
    """The whole page, or only its live part if a script asks for that after one of its topics changed.

    ``every_s`` is the shortest time between two such requests of one tab.
    """
    live = request.headers.get(LIVE_HEADER) == "live"
    values |= {
        "frame": "live.html" if live else "base.html",
        "place": place,
        "crumbs": list(crumbs),
        "topics": [{"topic": answer.path, "etag": answer.etag} for answer in topics],
        "every_s": every_s,
    }
    response = render(request, template, values, status=status)
    response["Cache-Control"] = "no-store"
    response["Vary"] = f"Cookie, Accept-Language, {LIVE_HEADER}"
    return response


def title_of(name: str) -> str:
    """The title of an entry, in the reader's language."""
    return str(next((place.title for place in PLACES if place.name == name), _("Switchyard")))


def project_named(user: User, name: str) -> Project:
    """The project of this name among those that the user may see; raises 404."""
    project = permissions.visible_projects(user).filter(name=name).first()
    if project is None:
        raise Http404(_("There is no such project that you may see."))
    return project


def reader(request: HttpRequest) -> User:
    """The user who reads the page; they have signed in."""
    assert isinstance(request.user, User)
    return request.user
