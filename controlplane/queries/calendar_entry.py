"""What maintenance windows and reservations have in common, as they are shown and chosen."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import django_filters
import msgspec
from django.db.models import QuerySet
from django.utils import timezone
from django_filters.rest_framework import BooleanFilter

from controlplane.fleet import calendar
from controlplane.fleet.models import CalendarEntry


class EntryFields(msgspec.Struct, frozen=True):
    """When an entry of the calendar holds, why, and whose decision it was.

    With ``cron`` it recurs between ``starts_at`` and ``ends_at``: one begins at each time of that line in
    ``time_zone``, and lasts ``lasts_s``. ``next_starts_at`` and ``next_ends_at`` are of the time that is now or next.
    """

    starts_at: datetime
    ends_at: datetime
    cron: str
    time_zone: str
    lasts_s: int | None
    next_starts_at: datetime
    next_ends_at: datetime
    reason: str
    made_by: str
    cancelled_at: datetime | None
    cancelled_by: str


def fields_of(row: CalendarEntry, now: datetime) -> dict[str, Any]:
    """Return the fields of an entry by their names in :class:`EntryFields`."""
    starts_at, ends_at = calendar.next_time(row, now)
    found = {"next_starts_at": starts_at, "next_ends_at": ends_at}
    return {name: found[name] if name in found else getattr(row, name) for name in EntryFields.__struct_fields__}


class EntryFilter(django_filters.FilterSet):
    """Filters of entries; without ``all`` only those that have not ended."""

    all = BooleanFilter(method="with_ended", help_text="Those that have ended or were cancelled, too.")

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = super().filter_queryset(queryset)
        return chosen if self.form.cleaned_data.get("all") else chosen.filter(calendar.not_ended(timezone.now()))

    def with_ended(self, rows: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        return rows  # the filter above has seen it
