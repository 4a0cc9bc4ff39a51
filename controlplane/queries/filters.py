"""Filters that several lists share."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import django_filters
from django.db.models import QuerySet

from controlplane.accounts.models import User
from controlplane.jobs.values import Unacceptable, moment
from controlplane.queries.refusals import Unanswerable


class UserFilterSet(django_filters.FilterSet):
    """A filter set whose result depends on the user: passed by pages, taken from the request by the API."""

    def __init__(self, *args: Any, user: User | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user or self.request.user


class SubmittedFilterSet(UserFilterSet):
    """Filters by the time of the submit."""

    submitted_after = django_filters.CharFilter(
        method="from_then", help_text="Submitted at this moment or later, as ISO 8601 with a zone."
    )
    submitted_before = django_filters.CharFilter(
        method="until_then", help_text="Submitted before this moment, as ISO 8601 with a zone."
    )

    def from_then(self, found: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        return found.filter(submitted_at__gte=moment_of(name, value))

    def until_then(self, found: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        return found.filter(submitted_at__lt=moment_of(name, value))


def moment_of(name: str, text: str) -> datetime:
    """Read the moment that a parameter gives. Raises Unanswerable."""
    try:
        return moment(text)
    except Unacceptable as fault:
        raise Unanswerable(f"{name} {fault}") from None
