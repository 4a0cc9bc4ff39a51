"""Time zones that people choose, and the middleware by which pages show times in them."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from functools import cache

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from controlplane.accounts.models import User

# Names in the time zone database that are not places, and that browsers do not know.
_NO_ZONES = frozenset({"Factory", "localtime"})


@cache
def names() -> tuple[str, ...]:
    """Return the zones that may be chosen, sorted by name."""
    return tuple(sorted(zoneinfo.available_timezones() - _NO_ZONES))


def zone_of(user: User) -> zoneinfo.ZoneInfo | None:
    """Return the zone that the user chose; None if they chose none, or if this host does not know it any more."""
    return zoneinfo.ZoneInfo(user.time_zone) if user.time_zone in names() else None


def middleware(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Activates the zone of the user for pages, UTC without one. The API uses UTC only."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(("/api/", "/agent/")) or not isinstance(request.user, User):
            return get_response(request)
        with timezone.override(zone_of(request.user)):
            return get_response(request)

    return respond
