"""Time zones that people choose, and the middleware by which their pages show times in them."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from functools import cache

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from controlplane.accounts.models import User

# Names in the database of time zones that name no place, and that browsers do not know.
_NO_ZONES = frozenset({"Factory", "localtime"})


@cache
def names() -> tuple[str, ...]:
    """The zones that may be chosen, in the order of their names."""
    return tuple(sorted(zoneinfo.available_timezones() - _NO_ZONES))


def zone_of(user: User) -> zoneinfo.ZoneInfo | None:
    """The zone that the user chose; None where they chose none, or where this host does not know it any more."""
    return zoneinfo.ZoneInfo(user.time_zone) if user.time_zone in names() else None


def middleware(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Has pages show times in the zone of their reader, and in UTC where they chose none. The API tells UTC only."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(("/api/", "/agent/")) or not isinstance(request.user, User):
            return get_response(request)
        with timezone.override(zone_of(request.user)):
            return get_response(request)

    return respond
