"""Filters that several lists share."""

from __future__ import annotations

from typing import Any

import django_filters

from controlplane.accounts.models import User


class UserFilterSet(django_filters.FilterSet):
    """A filter set whose result depends on the user: passed by pages, taken from the request by the API."""

    def __init__(self, *args: Any, user: User | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user or self.request.user
