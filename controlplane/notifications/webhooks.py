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
KEY_BYTES: Final = 32
# Chats whose robots check a signature of their own, made with a secret that the robot's settings show.
SIGN: Final = (Webhook.Format.FEISHU, Webhook.Format.DINGTALK)
LONGEST_SECRET: Final = 200


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
    budgets: bool | None = None,
    secret: str | None = None,
) -> tuple[Webhook, str]:
    """Set a webhook; the second value is the key of its signatures if it is new, which is shown this once. It stays
    switched off or on unless ``is_active`` says so; what a webhook that is off was still to be told goes. Whether
    ``budgets`` are told and the ``secret`` of a chat's robot stay too, unless they are given; an empty secret is none.

    Raises :class:`WebhookRefused`, and ``KeyUnavailable``.
    """
    _check(name, url, states)
    _check_secret(kind, secret)
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
            content = secrets.token_bytes(KEY_BYTES)
            row.put(content)
            key = PREFIX + base64.b64encode(content).decode()
        row.url, row.states, row.format = url, sorted(set(states)), kind
        row.retry_at, row.failures, row.fault = None, 0, ""
        row.is_active = row.is_active if is_active is None else is_active
        row.budgets = row.budgets if budgets is None else budgets
        _keep_secret(row, secret)
        row.save()
        if not row.is_active:
            row.deliveries.all().delete()
        # Its path may be a secret of whoever is told.
        host = addresses.parsed(url, settings.WEBHOOK_NETWORKS).hostname
        after = {"host": host, "states": row.states, "format": kind, "active": row.is_active}
        after |= {"budgets": row.budgets, "has_secret": row.has_secret}
        audit.record("webhook.set", webhook_named(row), after=after)
    return row, key


def change(user: User, row: Webhook, **given: Any) -> Webhook:
    """Change what is named of ``url``, ``states``, ``kind``, ``is_active``, ``budgets`` and ``secret``.

    Raises :class:`WebhookRefused`, and ``KeyUnavailable``.
    """
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


def _check_secret(kind: str, secret: str | None) -> None:
    if secret and kind not in SIGN:
        detail = _("only the robots of {formats} check a secret; leave it out for {kind}")
        raise WebhookRefused("invalid", detail.format(formats=", ".join(SIGN), kind=kind), "secret")
    if secret and not (len(secret) <= LONGEST_SECRET and secret.isascii() and secret.isprintable()):
        detail = _("secret must be at most {most} letters, digits and signs, as the settings of the robot show it")
        raise WebhookRefused("invalid", detail.format(most=LONGEST_SECRET), "secret")


def _keep_secret(row: Webhook, secret: str | None) -> None:
    """Put the secret behind the key; a format that signs nothing has none."""
    wanted = "" if row.format not in SIGN else secret
    if wanted is None or not (wanted or row.has_secret):
        return
    row.put(row.content()[:KEY_BYTES] + wanted.encode())
    row.has_secret = bool(wanted)
