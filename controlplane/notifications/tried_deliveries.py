"""How deliveries to webhooks went: the newest fifty of each, for a week; and sending one again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import audit
from controlplane.notifications.models import TriedDelivery, Webhook, WebhookDelivery
from controlplane.notifications.outbound import ReceivedAnswer

MOST_KEPT: Final = 50
KEPT: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class DeliveryTry:
    """One try: ``fault`` is empty if the delivery was accepted."""

    row: WebhookDelivery
    fault: str
    answer: ReceivedAnswer | None
    took_s: float


class NotSentAgain(Exception):
    """A delivery is not sent again; the text is for the user."""


def note(webhook: Webhook, tried: Sequence[DeliveryTry]) -> None:
    """Write down how these deliveries went, each counted with its tries before, and forget the oldest."""
    now = timezone.now()
    with transaction.atomic():
        if not Webhook.objects.select_for_update().filter(pk=webhook.pk).exists():
            return
        mine = TriedDelivery.objects.filter(webhook=webhook)
        before = dict(mine.filter(event__in=[one.row.event for one in tried]).values_list("event", "tries"))
        TriedDelivery.objects.bulk_create(
            [
                TriedDelivery(
                    webhook=webhook,
                    event=one.row.event,
                    at=one.row.at,
                    data=one.row.data,
                    tries=before.get(one.row.event, 0) + 1,
                    tried_at=now,
                    took_s=round(one.took_s, 3),
                    status=one.answer.status if one.answer else None,
                    fault=one.fault[:40],
                )
                for one in tried
            ],
            update_conflicts=True,
            unique_fields=["webhook", "event"],
            update_fields=["tries", "tried_at", "took_s", "status", "fault"],
        )
        mine.exclude(pk__in=list(mine.values_list("pk", flat=True)[:MOST_KEPT])).delete()


def forget_old() -> None:
    """Forget what was last tried more than a week ago."""
    TriedDelivery.objects.filter(tried_at__lt=timezone.now() - KEPT).delete()


def resend(webhook: Webhook, event: uuid.UUID) -> TriedDelivery:
    """Have a delivery that was not accepted sent again in the next run, with the same id.

    Raises TriedDelivery.DoesNotExist, and :class:`NotSentAgain` for one that was accepted or a webhook that is off.
    """
    with transaction.atomic():
        Webhook.objects.select_for_update().get(pk=webhook.pk)
        row = TriedDelivery.objects.get(webhook=webhook, event=event)
        if not row.fault:
            raise NotSentAgain(_("this delivery was accepted; only those that failed are sent again"))
        if not webhook.is_active:
            raise NotSentAgain(_("webhook {name} is switched off; switch it on first").format(name=webhook.name))
        if not WebhookDelivery.objects.filter(webhook=webhook, event=event).exists():
            WebhookDelivery.objects.create(
                webhook=webhook, event=event, at=row.at, data=row.data, resent_at=timezone.now()
            )
        Webhook.objects.filter(pk=webhook.pk).update(retry_at=None)
        audit.record("webhook.resend", webhook_named(webhook), after={"event": str(event)})
    return row


def webhook_named(row: Webhook) -> tuple[str, object, str]:
    """Return a webhook as the audit log names it."""
    return "webhook", row.pk, f"{row.project.name}/{row.name}"
