"""Operations: actions on many jobs that go on in the background."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django_filters import FilterSet

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.jobs import models as rows
from controlplane.queries.reading import Representation, listed
from controlplane.queries.refusals import Unseen


class OperationRefusal(msgspec.Struct, frozen=True):
    """Why the action was not done to a job."""

    number: int
    code: str
    detail: str


class Operation(msgspec.Struct, frozen=True):
    """An action on many jobs. ``phase`` is WAITING, RUNNING, DONE, FAILED or CANCELLED.

    ``progress`` is from 0 to 1, of the jobs that ``matched`` when it began. ``refusals`` has the first hundred, and
    ``fault`` says why it failed.
    """

    id: int
    user: str
    action: str
    filter: dict[str, str]
    patch: dict[str, Any] | None
    reason: str
    phase: str
    progress: float
    matched: int
    done: int
    refused: int
    refusals: list[OperationRefusal]
    fault: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


def visible(user: User) -> QuerySet[rows.Operation]:
    """This user's operations, or everybody's with the permission to end jobs."""
    found = rows.Operation.objects.select_related("user")
    return found if permissions.may(user, Permit.END_JOBS) else found.filter(user=user)


def found(user: User, number: int) -> rows.Operation:
    """The operation with this number, if this user may see it; raises 404 otherwise."""
    row = visible(user).filter(pk=number).first()
    if row is None:
        raise Unseen(_("operation {number}").format(number=number))
    return row


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the operations that this user may see, newest first."""
    return listed(user, "/operations", params, FilterSet(params, visible(user)), "-id", shown)


def shown(found: Iterable[rows.Operation], user: User | None = None) -> list[Operation]:
    """These operations, which the user may see."""
    return [
        Operation(
            id=row.pk,
            user=row.user.get_username(),
            action=row.action,
            filter=row.filter,
            patch=row.patch,
            reason=row.reason,
            phase=row.phase,
            progress=1.0 if row.ended_at else min(1.0, (row.done + row.refused) / max(1, row.matched)),
            matched=row.matched,
            done=row.done,
            refused=row.refused,
            refusals=[OperationRefusal(**one) for one in row.refusals],
            fault=row.fault,
            created_at=row.created_at,
            started_at=row.started_at,
            ended_at=row.ended_at,
        )
        for row in found
    ]
