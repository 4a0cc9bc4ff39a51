"""The webhooks of a project, without the keys of their signatures."""

from __future__ import annotations

from datetime import datetime

import msgspec

from controlplane.accounts.models import Project
from controlplane.notifications import models as rows


class Webhook(msgspec.Struct, frozen=True):
    """An address that is told when a job of the project enters one of ``states``. ``failures`` counts failed tries
    since the last success, and ``fault`` is the code of the last one; ``waiting`` is how much is still to be told."""

    name: str
    url: str
    format: str
    states: list[str]
    created_at: datetime
    made_by: str
    delivered_at: datetime | None
    retry_at: datetime | None
    failures: int
    fault: str
    waiting: int


class NewWebhook(msgspec.Struct, frozen=True):
    """A webhook with the key of its signatures, which is shown this once; empty if the webhook was there before."""

    webhook: Webhook
    key: str


class WebhookList(msgspec.Struct, frozen=True):
    """The webhooks of a project by name."""

    results: list[Webhook]


def shown(row: rows.Webhook) -> Webhook:
    """This webhook, without its key."""
    return Webhook(
        row.name, row.url, row.format, row.states, row.created_at, row.made_by, row.delivered_at, row.retry_at,
        row.failures, row.fault, row.deliveries.count(),
    )  # fmt: skip


def of_project(project: Project) -> WebhookList:
    """The webhooks of this project."""
    return WebhookList([shown(row) for row in rows.Webhook.objects.filter(project=project)])
