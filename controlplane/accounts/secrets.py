"""The secrets of projects: who may set and delete them, and how. Values are read only when a stage is ordered."""

from __future__ import annotations

import hmac
from typing import Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import audit, permissions
from controlplane.accounts.keys import KeyUnavailable
from controlplane.accounts.models import Project, Secret, User, variable
from controlplane.accounts.permissions import Permit

MOST_SECRETS: Final = 200
LARGEST: Final = 48 * 1024


class SecretRefused(Exception):
    """A secret is not set or deleted; the text is for the user. ``code`` is stable, ``field`` is the invalid field."""

    def __init__(self, code: str, detail: str, field: str = "", status: int = 422) -> None:
        super().__init__(detail)
        self.code, self.field, self.status = code, field, status


def of(project: Project) -> QuerySet[Secret]:
    """The secrets of a project without their encrypted values."""
    return Secret.objects.filter(project=project).defer("ciphertext", "wrapped_key")


def may_set(user: User, project: Project) -> bool:
    """Whether this user may set secrets of this project: users who may submit to it."""
    return permissions.submittable(user).filter(pk=project.pk).exists()


def may_delete(user: User, project: Project) -> bool:
    """Whether this user may delete secrets of this project: its leads, and operators."""
    return permissions.may(user, Permit.DELETE_SECRETS) or permissions.led(user).filter(pk=project.pk).exists()


def put(user: User, project: Project, name: str, value: str) -> tuple[Secret, bool]:
    """Set a secret; the second value tells whether it is new. The same value again makes no new version.

    Raises :class:`SecretRefused`, and ``KeyUnavailable``.
    """
    if not may_set(user, project):
        detail = _("only members and leads of project {project} and operators may set its secrets")
        raise SecretRefused("permission_denied", detail.format(project=project.name), status=403)
    _check(name, value)
    now, who = timezone.now(), user.get_username()
    with transaction.atomic():
        # Serialised, so that concurrent calls do not exceed the limit.
        Project.objects.select_for_update().get(pk=project.pk)
        row = Secret.objects.filter(project=project, name=name).first()
        is_new = row is None
        if row is None:
            if Secret.objects.filter(project=project).count() >= MOST_SECRETS:
                detail = _("project {project} has {most} secrets; delete one that is not used any more")
                raise SecretRefused("too_many", detail.format(project=project.name, most=MOST_SECRETS), status=409)
            row = Secret(project=project, name=name, created_by=who, created_at=now)
        elif _holds(row, value):
            return row, False
        else:
            row.version += 1
        row.updated_by, row.updated_at = who, now
        row.put(value.encode())
        row.save()
        audit.record("secret.set", _named(row), after={"version": row.version})
    return row, is_new


def delete(user: User, project: Project, name: str) -> None:
    """Delete the secret of this name, if there is one. Stages that need it keep waiting, with that reason. Raises
    :class:`SecretRefused`."""
    if not may_delete(user, project):
        detail = _("only leads of project {project} and operators may delete its secrets")
        raise SecretRefused("permission_denied", detail.format(project=project.name), status=403)
    with transaction.atomic():
        row = of(project).select_for_update().filter(name=name).first()
        if row is not None:
            audit.record("secret.delete", _named(row), before={"version": row.version})
            row.delete()


def _named(row: Secret) -> tuple[str, object, str]:
    """The object for the audit log."""
    return "secret", row.pk, f"{row.project.name}/{row.name}"


def _check(name: str, value: str) -> None:
    try:
        variable(name)
    except ValidationError:
        detail = _("name must have 1 to 128 letters, digits and _, and begin with no digit")
        raise SecretRefused("invalid_name", detail, "name") from None
    if name.startswith("YARD_"):
        detail = _("name must not begin with YARD_: such variables are set by Switchyard")
        raise SecretRefused("reserved", detail, "name")
    if not value:
        raise SecretRefused("missing", _("value is empty; a secret holds at least one character"), "value")
    if len(value.encode(errors="surrogatepass")) > LARGEST:
        detail = _("value has more than {most:,} bytes; keep larger files on the pool's storage")
        raise SecretRefused("too_long", detail.format(most=LARGEST), "value")
    try:
        if "\0" in value:
            raise ValueError
        value.encode()
    except ValueError:
        detail = _("value must be UTF-8 text without NUL; write anything else in base64")
        raise SecretRefused("invalid", detail, "value") from None


def _holds(row: Secret, value: str) -> bool:
    """Whether the secret has this value; one that cannot be decrypted has not."""
    try:
        return hmac.compare_digest(row.content(), value.encode())
    except KeyUnavailable:
        return False
