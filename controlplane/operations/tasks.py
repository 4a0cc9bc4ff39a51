"""The Celery tasks that look after the fleet and the record: each calls one function."""

from celery import shared_task

from controlplane import changes
from controlplane.operations import database_poll as database_poll  # starts with the worker
from controlplane.operations import watch as duties
from controlplane.scheduling import shadow as beside


@shared_task(  # type: ignore[untyped-decorator]
    name="fleet.watch", acks_late=True, reject_on_worker_lost=True, soft_time_limit=50, time_limit=60
)
def watch() -> None:
    """Looks for silent nodes. Idempotent: each look is claimed by a row, and a state changes once."""
    duties.watch()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.housekeeping", acks_late=True, reject_on_worker_lost=True, soft_time_limit=600, time_limit=660
)
def housekeeping() -> None:
    """Clears what is old. Idempotent: it is claimed by a row, and what was cleared is gone."""
    duties.housekeeping()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.invariants", acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def invariants() -> None:
    """Looks whether the record holds what must always hold. Idempotent: it reads, and says what it found."""
    duties.check()


@shared_task(  # type: ignore[untyped-decorator]
    name=changes.SHADOW_TASK, acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def shadow(decision_id: int) -> None:
    """Lets the shadow profiles think about one decision. Idempotent: a decision has one row of theirs."""
    beside.think_beside(decision_id)
