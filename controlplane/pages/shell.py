"""The frame of every page: its navigation, and the choice between whole page and live part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
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
        "version": settings.VERSION,
        "languages": settings.LANGUAGES,
        "language": get_language() or settings.LANGUAGE_CODE,
    }


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


def reader(request: HttpRequest) -> User:
    """The user who reads the page; they have signed in."""
    assert isinstance(request.user, User)
    return request.user
