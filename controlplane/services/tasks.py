"""The Celery task that lets services have what they are to have."""

from celery import shared_task
from django.utils import timezone

from controlplane.functions import calls
from controlplane.operations.watch import claim
from controlplane.services import replicas

EVERY_S = 1.0
FORGET_S = 3_600.0


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.services", acks_late=True, reject_on_worker_lost=True, soft_time_limit=60, time_limit=90
)
def follow() -> None:
    """Starts, drains and stops replicas. Idempotent: a service is locked while it is looked at."""
    if claim("services", EVERY_S * 0.9):
        replicas.follow_all(timezone.now())
        calls.recover(timezone.now())
    if claim("services.forget", FORGET_S):
        replicas.forget_old(timezone.now())
        calls.forget_old(timezone.now())
