"""The Celery tasks of the usage ledger and of devices that are held idle."""

from celery import shared_task
from django.utils import timezone

from controlplane.jobs import sessions
from controlplane.operations.watch import claim
from controlplane.pools.models import Budget
from controlplane.usage import budgets, idle, ledger, ports_idle

EVERY_S = 60.0


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.usage", acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def count() -> None:
    """Brings the usage ledger and what is used of budgets up to now. Idempotent: days are computed anew, and a
    measurement is added once."""
    if claim("usage", EVERY_S * 0.9):
        ledger.refresh(timezone.now())
        budgets.refresh(Budget.objects.all())


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.idle", acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def judge() -> None:
    """Acts on stages that hold devices idle, as their utilization_policy says, and on those whose ports nobody uses.
    Idempotent: once for each attempt."""
    if claim("idle", idle.EVERY_S * 0.9):
        idle.judge(timezone.now())
        ports_idle.judge(timezone.now())
        sessions.sweep()
