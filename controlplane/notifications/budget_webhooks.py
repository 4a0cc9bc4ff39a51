"""Tells webhooks that ask for it when 80 % and 100 % of a budget are used."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.utils import timezone

from controlplane.notifications.models import TriedDelivery, Webhook, WebhookDelivery
from controlplane.pools.models import Budget

_NAMESPACE: Final = uuid.UUID("6f1c9a54-6f0c-4e0e-9d1f-4f3f7a1d8c52")


def tell(budget: Budget, level: int) -> None:
    """Have the webhooks of the budget's project told, each once of a level in a period however often this is called."""
    for webhook in Webhook.objects.filter(project=budget.project_id, budgets=True, is_active=True):
        event = uuid.uuid5(_NAMESPACE, f"{webhook.pk} {budget.pk} {budget.until_at} {budget.hours} {level}")
        is_told = TriedDelivery.objects.filter(webhook=webhook, event=event).exists()
        if is_told or webhook.deliveries.filter(event=event).exists():
            continue
        WebhookDelivery.objects.create(webhook=webhook, event=event, at=timezone.now(), data=_told(budget, level))


def _told(budget: Budget, level: int) -> dict[str, Any]:
    return {
        "budget": budget.pk,
        "project": budget.project.name,
        "kind": budget.kind,
        "normalised": budget.normalised,
        "level": level,
        "hours": budget.hours,
        "used_hours": round(budget.used_hours, 2),
        "at_end": budget.at_end,
        "until_at": budget.until_at.isoformat() if budget.until_at else None,
    }
