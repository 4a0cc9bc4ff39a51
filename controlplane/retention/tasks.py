"""The Celery tasks of ended records: archives logs, and removes old records."""

import time

from celery import shared_task

from controlplane.jobs import log_archive, log_blocks
from controlplane.operations.watch import claim
from controlplane.retention import sweep

EVERY_S = 600.0
ARCHIVE_EVERY_S = 60.0


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.retention", acks_late=True, reject_on_worker_lost=True, soft_time_limit=300, time_limit=330
)
def remove_old() -> None:
    """Removes records past their retention. Idempotent: each run is claimed by a row."""
    if claim("retention", EVERY_S * 0.9):
        sweep.sweep()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.archive", acks_late=True, reject_on_worker_lost=True, soft_time_limit=600, time_limit=660
)
def archive_logs() -> None:
    """Moves logs of ended parts into the archive. Idempotent: the run is claimed by a row, each log by its own."""
    if claim("archive", ARCHIVE_EVERY_S * 0.9):
        log_archive.move_due()
        log_blocks.sweep(int(time.time()) // 60)
