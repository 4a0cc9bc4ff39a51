"""The Celery tasks of notices and webhooks."""

from celery import shared_task

from controlplane.notifications import budget_mail, notices, webhook_delivery
from controlplane.operations.watch import claim

EVERY_S = 60.0


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.notices", acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def send() -> None:
    """Mails users about their ended jobs, and leads about budgets. Idempotent: a notice belongs to one mail, and a
    level of a budget is told once."""
    if claim("notices", EVERY_S * 0.9):
        notices.send()
        budget_mail.send()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.webhooks", acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def tell() -> None:
    """Delivers to webhooks. Idempotent: a worker claims a webhook, and who is told twice sees the same id."""
    webhook_delivery.send()
