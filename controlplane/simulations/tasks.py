"""The Celery task of simulations."""

from celery import shared_task

from controlplane.simulations import service


@shared_task(name="simulations.launch", ignore_result=True)  # type: ignore[untyped-decorator]
def launch(simulation_id: int) -> None:
    """Starts the process of a simulation."""
    service.launch(simulation_id)
