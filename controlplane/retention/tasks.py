"""The Celery task of retention."""

from celery import shared_task

from controlplane.operations.watch import claim
from controlplane.retention import sweep

EVERY_S = 600.0


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.retention", acks_late=True, reject_on_worker_lost=True, soft_time_limit=300, time_limit=330
)
def remove_old() -> None:
    """Removes what is older than it is kept. Idempotent: it is claimed by a row, and what went is gone."""
    if claim("retention", EVERY_S * 0.9):
        sweep.sweep()
