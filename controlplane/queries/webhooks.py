"""The webhooks of a project, without the keys of their signatures."""

from __future__ import annotations

import uuid
from datetime import datetime

import msgspec
from django.utils import timezone

from controlplane.accounts.models import Project
from controlplane.notifications import models as rows
from controlplane.notifications.tried_deliveries import DeliveryTry
from controlplane.notifications.webhook_delivery import type_of

LONGEST_ANSWER = 1_000


class Webhook(msgspec.Struct, frozen=True):
    """An address that is told when a job of the project enters one of ``states``, unless it is switched off; with
    ``budgets`` also when a budget is 80 % or all used. ``has_secret``: the robot of the chat checks signatures.
    ``failures`` counts failed tries since the last success, and ``fault`` is the code of the last one; ``waiting`` is
    how much is still to be told."""

    name: str
    url: str
    format: str
    states: list[str]
    budgets: bool
    has_secret: bool
    active: bool
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


class WebhookTest(msgspec.Struct, frozen=True):
    """How a test went: ``fault`` is empty if it was accepted. ``answer`` is the beginning of what a public address
    answered; it is shown this once."""

    event: uuid.UUID
    status: int | None
    fault: str
    took_s: float
    answer: str


class TriedDelivery(msgspec.Struct, frozen=True):
    """How telling one event went. ``state`` is delivered, waiting (it is tried again at ``next_try_at``) or failed.
    The last of its ``tries`` was at ``tried_at`` and took ``took_s``; ``status`` is what was answered."""

    event: uuid.UUID
    type: str
    job: int | None
    at: datetime
    state: str
    status: int | None
    fault: str
    tries: int
    tried_at: datetime
    took_s: float
    next_try_at: datetime | None


class TriedDeliveryList(msgspec.Struct, frozen=True):
    """The newest deliveries of a webhook that were tried."""

    results: list[TriedDelivery]


class WebhookList(msgspec.Struct, frozen=True):
    """The webhooks of a project by name."""

    results: list[Webhook]


def shown(row: rows.Webhook) -> Webhook:
    """This webhook, without its key."""
    return Webhook(
        row.name, row.url, row.format, row.states, row.budgets, row.has_secret, row.is_active, row.created_at,
        row.made_by, row.delivered_at,
        row.retry_at, row.failures, row.fault, row.deliveries.count(),
    )  # fmt: skip


def of_project(project: Project) -> WebhookList:
    """The webhooks of this project."""
    return WebhookList([shown(row) for row in rows.Webhook.objects.filter(project=project)])


def tested(tried: DeliveryTry) -> WebhookTest:
    """How a test went, with the answer as text without control characters."""
    answer = tried.answer
    text = answer.body.decode(errors="replace")[:LONGEST_ANSWER] if answer and answer.is_public else ""
    shown_text = "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
    return WebhookTest(
        tried.row.event, answer.status if answer else None, tried.fault, round(tried.took_s, 3), shown_text
    )


def tried_of(row: rows.Webhook) -> TriedDeliveryList:
    """The newest deliveries of this webhook that were tried, the last try first."""
    waiting = set(row.deliveries.values_list("event", flat=True))
    return TriedDeliveryList([_tried(one, row, one.event in waiting) for one in row.tried.all()])


def _tried(one: rows.TriedDelivery, row: rows.Webhook, is_waiting: bool) -> TriedDelivery:
    return TriedDelivery(
        event=one.event,
        type=type_of(one.data),
        job=one.data.get("number"),
        at=one.at,
        state="waiting" if is_waiting else "failed" if one.fault else "delivered",
        status=one.status,
        fault=one.fault,
        tries=one.tries,
        tried_at=one.tried_at,
        took_s=one.took_s,
        next_try_at=(row.retry_at or timezone.now()) if is_waiting else None,
    )
