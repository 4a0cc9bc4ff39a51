"""The Celery task that submits schedules."""

from celery import shared_task
from django.utils import timezone

from controlplane.operations.watch import claim
from controlplane.schedules import service

EVERY_S = 5.0


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.schedules", acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def submit() -> None:
    """Submits schedules that are due. Idempotent: each of their times is submitted once."""
    if claim("schedules", EVERY_S * 0.9):
        service.submit_due(timezone.now())
