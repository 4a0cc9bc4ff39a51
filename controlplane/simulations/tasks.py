"""The Celery task of simulations."""

from typing import Any

from celery import shared_task
from celery.signals import worker_shutting_down

from controlplane.simulations import service


@shared_task(name="simulations.run", soft_time_limit=950, time_limit=960)  # type: ignore[untyped-decorator]
def run(simulation_id: int) -> None:
    """Runs a simulation in a process of its own, and ends when that has.

    Acknowledged as it begins: one whose worker is gone has failed, which its owner is told, and is begun again by them.
    """
    service.run(simulation_id)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop(**_: Any) -> None:
    service.stop_all()
