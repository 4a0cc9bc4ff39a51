"""The Celery tasks that check the fleet and the database: each calls one function."""

from celery import shared_task

from controlplane import changes
from controlplane.operations import database_poll as database_poll  # starts with the worker
from controlplane.operations import pilots, sources
from controlplane.operations import watch as duties
from controlplane.scheduling import shadow as beside
from controlplane.sites import exchange


@shared_task(  # type: ignore[untyped-decorator]
    name="fleet.watch", acks_late=True, reject_on_worker_lost=True, soft_time_limit=50, time_limit=60
)
def watch() -> None:
    """Runs the failure detection. Idempotent: each run is claimed by a row, and a state changes once."""
    duties.watch()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.housekeeping", acks_late=True, reject_on_worker_lost=True, soft_time_limit=600, time_limit=660
)
def housekeeping() -> None:
    """Deletes what has expired. Idempotent: each run is claimed by a row."""
    duties.housekeeping()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.sources", acks_late=True, reject_on_worker_lost=True, soft_time_limit=200, time_limit=230
)
def fetch_sources() -> None:
    """Fetches the code of jobs from git repositories. Idempotent: a worker claims a source."""
    sources.fetch_due()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.invariants", acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def invariants() -> None:
    """Checks the invariants. Idempotent: it reads, and sets an alarm."""
    duties.check()


@shared_task(  # type: ignore[untyped-decorator]
    name=changes.SHADOW_TASK, acks_late=True, reject_on_worker_lost=True, soft_time_limit=120, time_limit=150
)
def shadow(decision_id: int) -> None:
    """Evaluates the shadow profiles for one decision. Idempotent: a decision has one row of theirs."""
    beside.evaluate_shadows(decision_id)


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.pilots", acks_late=True, reject_on_worker_lost=True, soft_time_limit=300, time_limit=330
)
def look_after_pilots() -> None:
    """Asks for pilots and gives them back. Idempotent: each is written down first, and found again by its label."""
    if duties.claim("pilots", pilots.EVERY_S * 0.9):
        pilots.look()


@shared_task(  # type: ignore[untyped-decorator]
    name="maintenance.sites", acks_late=True, reject_on_worker_lost=True, soft_time_limit=300, time_limit=330
)
def look_after_sites() -> None:
    """Exchanges jobs with other clusters. Idempotent: what is asked of one is written down first, with its key."""
    if duties.claim("sites", exchange.EVERY_S * 0.9):
        exchange.look()
