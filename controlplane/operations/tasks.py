"""The Celery tasks of the fleet and of what is thought beside the scheduler: each calls one function."""

from celery import shared_task

from controlplane import changes
from controlplane.operations import watch as duties
from controlplane.scheduling import shadow as beside


@shared_task(name="fleet.watch", ignore_result=True)  # type: ignore[untyped-decorator]
def watch() -> None:
    """Looks for silent nodes."""
    duties.watch()


@shared_task(name="fleet.housekeeping", ignore_result=True)  # type: ignore[untyped-decorator]
def housekeeping() -> None:
    """Clears what is old."""
    duties.housekeeping()


@shared_task(name="fleet.invariants", ignore_result=True)  # type: ignore[untyped-decorator]
def invariants() -> None:
    """Looks whether the record holds what must always hold."""
    duties.check()


@shared_task(name=changes.SHADOW_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def shadow(decision_id: int) -> None:
    """Lets the shadow profiles think about one decision."""
    beside.think_beside(decision_id)
