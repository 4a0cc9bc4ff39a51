"""The Celery tasks of the fleet: each calls one function."""

from celery import shared_task

from controlplane.live import watch as duties


@shared_task(name="fleet.watch", ignore_result=True)  # type: ignore[untyped-decorator]
def watch() -> None:
    """Looks for silent nodes."""
    duties.watch()


@shared_task(name="fleet.housekeeping", ignore_result=True)  # type: ignore[untyped-decorator]
def housekeeping() -> None:
    """Clears what is old."""
    duties.housekeeping()
