"""Revocations since a backup: read from the database that a restore replaces, and repeated after it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import DatabaseError, transaction
from django.db.models import Model

from controlplane.accounts.models import DeviceCode, Project, SignInLink, Token, User
from controlplane.fleet.models import JoinToken, Node


@dataclass(frozen=True, slots=True)
class Valid:
    """The valid credentials of one database. ``projects`` tell whether another database is of the same installation;
    users are identified by number and creation time."""

    projects: frozenset[uuid.UUID]
    tokens: frozenset[uuid.UUID]
    users: Mapping[tuple[int, datetime], tuple[bool, str]]
    join_tokens: Mapping[str, int]
    nodes: Mapping[uuid.UUID, tuple[str, datetime | None, list[str]]]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Numbers of revoked credentials; of users, deactivated; of passwords and nodes' credentials, replaced by later
    ones."""

    tokens: int = 0
    join_tokens: int = 0
    users: int = 0
    passwords: int = 0
    nodes: int = 0

    def said(self) -> str:
        """Format it as a list."""
        return (
            f"{self.tokens} access tokens, {self.join_tokens} join tokens, {self.nodes} nodes' credentials, "
            f"{self.users} people, {self.passwords} passwords"
        )


def valid() -> Valid | None:
    """Return the valid credentials of the present database; None if unknown, as in one of another release."""
    try:
        with transaction.atomic():
            return Valid(
                frozenset(Project.objects.values_list("id", flat=True)),
                frozenset(Token.objects.values_list("id", flat=True)),
                {
                    (pk, joined): (is_active, password)
                    for pk, joined, is_active, password in User.objects.values_list(
                        "pk", "date_joined", "is_active", "password"
                    )
                },
                dict(JoinToken.objects.values_list("digest", "uses_left")),
                {
                    pk: (digest, at, offered)
                    for pk, digest, at, offered in Node.objects.values_list(
                        "pk", "credential_digest", "credential_at", "offered_digests"
                    )
                },
            )
    except DatabaseError:
        return None


def end_sessions() -> None:
    """Sign everybody out, and delete pending sign-ins, because a user may have been deactivated since the backup."""
    for model in (Session, UserSession, SignInLink, DeviceCode):
        model._default_manager.all().delete()


def revoke_all(before: Revoked) -> Revoked:
    """Revoke all access tokens and join tokens in addition to those revoked ``before``. Nodes keep their credentials,
    because each would have to join again."""
    tokens, joins = (_delete(model, model._default_manager.values_list("pk")) for model in (Token, JoinToken))
    return replace(before, tokens=before.tokens + tokens, join_tokens=before.join_tokens + joins)


def repeat(later: Valid | None) -> Revoked | None:
    """Revoke what was valid at the backup but is not in the ``later`` database.

    Returns None if that is unknown, or of another installation.
    """
    if later is None or not later.projects & set(Project.objects.values_list("id", flat=True)):
        return None
    users = passwords = nodes = 0
    for user in User.objects.iterator():
        is_active, password = later.users.get((user.pk, user.date_joined), (False, user.password))
        if (user.is_active and not is_active) or user.password != password:
            users += user.is_active and not is_active
            passwords += user.password != password
            user.is_active, user.password = user.is_active and is_active, password
            user.save(update_fields=["is_active", "password"])
    for node in Node.objects.only("credential_digest").iterator():
        digest, at, offered = later.nodes.get(node.pk, (f"revoked {uuid.uuid4()}", None, []))
        if node.credential_digest != digest:
            nodes += 1
            Node.objects.filter(pk=node.pk).update(credential_digest=digest, credential_at=at, offered_digests=offered)
    for join in JoinToken.objects.all():
        JoinToken.objects.filter(pk=join.pk, uses_left__gt=(left := later.join_tokens.get(join.pk, 0))).update(
            uses_left=left
        )
    return Revoked(
        _delete(Token, Token.objects.exclude(pk__in=later.tokens).values_list("pk")),
        _delete(JoinToken, JoinToken.objects.exclude(pk__in=later.join_tokens).values_list("pk")),
        users,
        passwords,
        nodes,
    )


def _delete(model: type[Model], keys: Iterable[Any]) -> int:
    found = [key for (key,) in keys]
    model._default_manager.filter(pk__in=found).delete()
    return len(found)


def left() -> tuple[int, int, int]:
    """Return how many access tokens, join tokens and nodes' credentials are valid."""
    nodes = Node.objects.exclude(credential_digest__startswith="revoked ")
    return Token.objects.count(), JoinToken.objects.filter(uses_left__gt=0).count(), nodes.count()
