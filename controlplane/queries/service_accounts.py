"""The service accounts of projects, and the use of their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
from django.db.models import Count, Max, Q
from django.utils import timezone

from controlplane.accounts.models import Member, Token, User


class ServiceAccount(msgspec.Struct, frozen=True):
    """A user for a program, in one project. ``tokens`` are those that are valid; ``last_used_at`` is to the minute."""

    name: str
    project: str
    role: str | None
    is_active: bool
    description: str
    created_at: datetime
    tokens: int
    last_used_at: datetime | None


def shown(accounts: Iterable[User], user: User) -> list[ServiceAccount]:
    """These accounts, whose ``service_of`` is loaded, in two queries."""
    accounts = list(accounts)
    roles = dict(Member.objects.filter(user__in=accounts).values_list("user_id", "role"))
    valid = Count("pk", filter=Q(expires_at__gt=timezone.now()))
    of_tokens = Token.objects.filter(user__in=accounts).order_by().values("user_id")
    used = {row["user_id"]: row for row in of_tokens.annotate(valid=valid, last=Max("last_used_at"))}
    return [
        ServiceAccount(
            account.get_username(),
            account.service_of.name if account.service_of else "",
            roles.get(account.pk),
            account.is_active,
            account.description,
            account.date_joined,
            used[account.pk]["valid"] if account.pk in used else 0,
            used[account.pk]["last"] if account.pk in used else None,
        )
        for account in accounts
    ]
