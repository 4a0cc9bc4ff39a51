"""Filters that several lists share."""

from __future__ import annotations

from typing import Any

import django_filters

from controlplane.accounts.models import User


class UserFilterSet(django_filters.FilterSet):
    """Filters whose answer depends on who asks: a page says it, and of the API it is the user of the request."""

    def __init__(self, *args: Any, user: User | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user or self.request.user
