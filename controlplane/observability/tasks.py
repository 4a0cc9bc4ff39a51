"""The Celery task that sends traces."""

from celery import shared_task
from django.utils import timezone

from controlplane.observability import traces
from controlplane.operations.watch import claim

EVERY_S = 10.0


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.traces", acks_late=True, reject_on_worker_lost=True, soft_time_limit=60, time_limit=90
)
def send() -> None:
    """Sends traces. Idempotent: a span that is sent twice has the same id."""
    if claim("traces", EVERY_S * 0.9):
        traces.export(timezone.now())
