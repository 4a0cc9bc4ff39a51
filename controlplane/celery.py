"""The Celery application, and extensions of its workers. Messages only trigger work; the state is in the database.

Messages carry ids only and may be lost, doubled or late. The queues, routes and beat schedule are one table in the
settings (``CELERY_*``); docs/decisions/048 gives the reasons.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, task_postrun, task_prerun

from controlplane import beat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
# Django's checks import all pages and the whole API, which a worker does not serve; ``migrate`` has run them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("switchyard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(
    [
        "controlplane.accounts",
        "controlplane.bulk",
        "controlplane.scheduling",
        "controlplane.operations",
        "controlplane.simulations",
        "controlplane.retention",
        "controlplane.notifications",
        "controlplane.observability",
        "controlplane.schedules",
        "controlplane.services",
        "controlplane.usage",
        "controlplane.whatif",
    ]
)

beat.offer(app)


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _prepare(sender: str = "", options: Any = None, **_: Any) -> None:
    """Prepares a worker: one for the scheduler's queue waits as a standby until no other takes it."""
    from controlplane.workers.start import prepare

    prepare(app, sender, options or {})


@task_prerun.connect  # type: ignore[untyped-decorator]
@task_postrun.connect  # type: ignore[untyped-decorator]
def _keep_connections(sender: Any = None, **_: Any) -> None:
    """Lets Django decide how long a worker keeps its connection to the database, as it does for requests.

    Celery would close it with every task (``CELERY_DB_REUSE_MAX``), and each cycle would open a new one.
    """
    from django.db import close_old_connections

    if not sender.request.is_eager:
        close_old_connections()
