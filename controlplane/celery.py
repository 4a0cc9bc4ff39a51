"""The Celery application. Celery wakes; the database is the truth.

Messages carry ids only and may be lost, doubled or late. Options follow what a half-open or restarted Redis does to a
worker: a socket that never answers must not block a producer, and a worker must never give up reconnecting.
"""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("switchyard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["scheduler", "controlplane.live"])
