"""The session and present rights of the user of a browser's socket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass, field
from uuid import UUID

from django.contrib.sessions.models import Session
from django.utils import timezone

from controlplane.accounts.models import Member, User
from controlplane.accounts.permissions import held


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of an active user with a valid session. Equal values see the same; ``user`` is the present row."""

    password: str
    is_staff: bool
    is_superuser: bool
    permissions: frozenset[str]
    roles: frozenset[tuple[UUID, str]]
    user: User = field(compare=False)


def rights(keys: Set[tuple[str, int]]) -> dict[tuple[str, int], Rights]:
    """Return the rights by session key and user id; nothing for ended or expired sessions and inactive users."""
    valid = Session.objects.filter(session_key__in={session for session, _ in keys}, expire_date__gt=timezone.now())
    sessions = set(valid.values_list("session_key", flat=True))
    users = User.objects.filter(is_active=True).in_bulk({user for _, user in keys})
    roles: dict[int, set[tuple[UUID, str]]] = defaultdict(set)
    for user_id, project, role in Member.objects.filter(user__in=users).values_list("user_id", "project_id", "role"):
        roles[user_id].add((project, role))
    permissions = held(users)
    return {
        (session, user_id): Rights(
            user.password,
            user.is_staff,
            user.is_superuser,
            permissions.get(user_id, frozenset()),
            frozenset(roles[user_id]),
            user,
        )
        for session, user_id in keys
        if session in sessions and (user := users.get(user_id)) is not None
    }
