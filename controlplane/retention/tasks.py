"""The Celery task of retention."""

from celery import shared_task

from controlplane.operations.watch import claim
from controlplane.retention import sweep

EVERY_S = 600.0


@shared_task(name="retention.sweep", ignore_result=True)  # type: ignore[untyped-decorator]
def remove_old() -> None:
    """Removes what is older than it is kept."""
    if claim("retention", EVERY_S * 0.9):
        sweep.sweep()
