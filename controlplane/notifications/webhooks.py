"""Webhooks of projects: who may set and delete them, and how."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane import addresses
from controlplane.accounts import audit, permissions
from controlplane.accounts.models import Project, User, slug
from controlplane.accounts.permissions import Permit
from controlplane.notifications.models import Webhook
from controlplane.notifications.tried_deliveries import webhook_named
from scheduler.core.model.lifecycle import FINAL, State

MOST_WEBHOOKS: Final = 20
USUAL: Final = sorted(FINAL)
PREFIX: Final = "whsec_"


class WebhookRefused(Exception):
    """A webhook is not set; the text is for the user. ``field`` is the invalid field."""

    def __init__(self, code: str, detail: str, field: str = "", status: int = 422) -> None:
        super().__init__(detail)
        self.code, self.field, self.status = code, field, status


def may_change(user: User, project: Project) -> bool:
    """Whether this user may see and change webhooks of this project: its leads, and operators."""
    return permissions.may(user, Permit.CHANGE_WEBHOOKS) or permissions.led(user).filter(pk=project.pk).exists()


def put(
    user: User,
    project: Project,
    name: str,
    url: str,
    states: Sequence[str],
    kind: str,
    is_active: bool | None = None,
) -> tuple[Webhook, str]:
    """Set a webhook; the second value is the key of its signatures if it is new, which is shown this once. It stays
    switched off or on unless ``is_active`` says so; what a webhook that is off was still to be told goes.

    Raises :class:`WebhookRefused`, and ``KeyUnavailable``.
    """
    _check(name, url, states)
    with transaction.atomic():
        # Serialised, so that concurrent calls do not exceed the limit.
        Project.objects.select_for_update().get(pk=project.pk)
        row = Webhook.objects.filter(project=project, name=name).first()
        key = ""
        if row is None:
            if Webhook.objects.filter(project=project).count() >= MOST_WEBHOOKS:
                detail = _("project {project} has {most} webhooks; delete one that is not used any more")
                raise WebhookRefused("too_many", detail.format(project=project.name, most=MOST_WEBHOOKS), status=409)
            row = Webhook(project=project, name=name, made_by=user.get_username(), created_at=timezone.now())
            content = secrets.token_bytes(32)
            row.put(content)
            key = PREFIX + base64.b64encode(content).decode()
        row.url, row.states, row.format = url, sorted(set(states)), kind
        row.retry_at, row.failures, row.fault = None, 0, ""
        row.is_active = row.is_active if is_active is None else is_active
        row.save()
        if not row.is_active:
            row.deliveries.all().delete()
        # Its path may be a secret of whoever is told.
        host = addresses.parsed(url, settings.WEBHOOK_NETWORKS).hostname
        after = {"host": host, "states": row.states, "format": kind, "active": row.is_active}
        audit.record("webhook.set", webhook_named(row), after=after)
    return row, key


def change(user: User, row: Webhook, **given: Any) -> Webhook:
    """Change what is named of ``url``, ``states``, ``kind`` and ``is_active``. Raises :class:`WebhookRefused`."""
    with transaction.atomic():
        locked = Webhook.objects.select_for_update().filter(pk=row.pk).first()
        if locked is None:
            detail = _("webhook {name} was deleted meanwhile").format(name=row.name)
            raise WebhookRefused("gone", detail, status=409)
        asked = {"url": locked.url, "states": locked.states, "kind": locked.format, **given}
        return put(user, row.project, row.name, **asked)[0]


def delete(project: Project, name: str) -> None:
    """Delete the webhook of this name, if there is one, with what it was still to be told."""
    with transaction.atomic():
        row = Webhook.objects.filter(project=project, name=name).first()
        if row is not None:
            audit.record("webhook.delete", webhook_named(row), before={"states": row.states})
            row.delete()


def _check(name: str, url: str, states: Sequence[str]) -> None:
    try:
        slug(name)
    except ValidationError as error:
        raise WebhookRefused("invalid_name", error.messages[0], "name") from None
    if not states or not set(states) <= set(State):
        detail = _("states must be one or more of {states}").format(states=", ".join(State))
        raise WebhookRefused("invalid", detail, "states")
    try:
        addresses.parsed(url, settings.WEBHOOK_NETWORKS)
    except addresses.AddressRefused as error:
        says = {
            "https_only": _("url must begin with https://"),
            "private_address": _("url must name a public host; private networks are those of YARD_WEBHOOK_NETWORKS"),
        }.get(error.code, _("url must be an address such as https://example.org/hook, without user and password"))
        raise WebhookRefused(error.code, says, "url") from None
