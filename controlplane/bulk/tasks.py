"""The Celery task of operations."""

from celery import shared_task

from controlplane.jobs.models import Operation

MOST_S = 40.0


@shared_task(name="maintenance.operations", soft_time_limit=120, time_limit=150)  # type: ignore[untyped-decorator]
def run() -> None:
    """Goes on with operations in turn, for a while; beat asks again. Lost and doubled messages do no harm."""
    if Operation.objects.exists():
        # What answers queries is loaded into a worker only where it is needed.
        from controlplane.bulk import service

        service.run(MOST_S)
