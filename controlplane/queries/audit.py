"""The audit log: who changed what and how, with the values before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import django_filters
import msgspec
from django.db.models import QuerySet

from controlplane.accounts import models as rows
from controlplane.accounts.models import User
from controlplane.queries.filters import moment_of
from controlplane.queries.reading import Representation, listed


class AuditEntry(msgspec.Struct, frozen=True):
    """A change. ``via`` is api, cli, page, admin or system; ``credential`` names the token or session that was used.
    ``before`` and ``after`` hold the changed values; secrets are masked and long values cut."""

    id: int
    at: datetime
    actor: str
    via: str
    credential: str
    action: str
    kind: str
    object_id: str
    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    reason: str
    request_id: str


class AuditFilter(django_filters.FilterSet):
    """Filters of audit entries."""

    actor = django_filters.CharFilter(help_text="Name of who made the change.")
    via = django_filters.CharFilter(help_text="api, cli, page, admin or system.")
    action = django_filters.CharFilter(
        method="of_action",
        help_text="Such as node.drain; what ends with a dot is the beginning of several: node.",
    )
    kind = django_filters.CharFilter(help_text="What was changed, such as node, job or token.")
    object = django_filters.CharFilter(
        method="of_object", help_text="Its id, or its name as the log has it, such as n1 or #12."
    )
    since = django_filters.CharFilter(
        method="at_or_after", help_text="At this moment or later, as ISO 8601 with a zone."
    )
    until = django_filters.CharFilter(method="earlier", help_text="Before this moment, as ISO 8601 with a zone.")

    def of_action(self, found: QuerySet[rows.AuditEntry], name: str, value: str) -> QuerySet[rows.AuditEntry]:
        return found.filter(**{"action__startswith" if value.endswith(".") else "action": value})

    def of_object(self, found: QuerySet[rows.AuditEntry], name: str, value: str) -> QuerySet[rows.AuditEntry]:
        return found.filter(name=value) | found.filter(object_id=value)

    def at_or_after(self, found: QuerySet[rows.AuditEntry], name: str, value: str) -> QuerySet[rows.AuditEntry]:
        return found.filter(at__gte=moment_of(name, value))

    def earlier(self, found: QuerySet[rows.AuditEntry], name: str, value: str) -> QuerySet[rows.AuditEntry]:
        return found.filter(at__lt=moment_of(name, value))


def shown(found: Iterable[rows.AuditEntry], user: User | None = None) -> list[AuditEntry]:
    """These changes; whoever may read the log sees all of it."""
    return [AuditEntry(**{name: getattr(row, name) for name in AuditEntry.__struct_fields__}) for row in found]


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the changes that ``params`` ask for."""
    return listed(user, "/audit", params, AuditFilter(params, rows.AuditEntry.objects.all()), "-id", shown)
