"""The Celery application. Celery wakes; the database is the truth.

Messages carry ids only and may be lost, doubled or late. Options follow what a half-open or restarted Redis does to a
worker: a socket that never answers must not block a producer, and a worker must never give up reconnecting.
"""

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import heartbeat_sent
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("switchyard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(
    [
        "scheduler",
        "controlplane.operations",
        "controlplane.simulations",
        "controlplane.retention",
        "controlplane.whatif",
    ]
)


def tell_alive(**_: Any) -> None:
    """Renew the age of the file that a check of health looks at; Celery calls it with every heartbeat to the broker."""
    Path(settings.ALIVE_FILE).touch()


# Celery reckons with the signal only where somebody listens when a worker starts.
if settings.ALIVE_FILE:
    heartbeat_sent.connect(tell_alive)
