"""THE RECORD: what is true, who may change it, and the doors to it."""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
