"""The secrets of a project: their names and versions, never their values."""

from __future__ import annotations

from datetime import datetime

import msgspec

from controlplane.accounts import models as rows
from controlplane.accounts import secrets
from controlplane.accounts.models import User


class Secret(msgspec.Struct, frozen=True):
    """A named value that stages of the project get. ``updated_at`` and ``updated_by`` are of its newest version."""

    name: str
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    last_used_at: datetime | None


class SecretList(msgspec.Struct, frozen=True):
    """The secrets of a project by name, and what you may do with them."""

    results: list[Secret]
    may_set: bool
    may_delete: bool


def shown(row: rows.Secret) -> Secret:
    """This secret, without its value."""
    return Secret(
        row.name, row.version, row.created_at, row.created_by, row.updated_at, row.updated_by, row.last_used_at
    )


def of_project(project: rows.Project, user: User) -> SecretList:
    """The secrets of this project, and what the user may do with them."""
    results = [shown(row) for row in secrets.of(project)]
    return SecretList(results, secrets.may_set(user, project), secrets.may_delete(user, project))
