"""The control plane: a Django project with models, REST API, pages, WebSockets and Celery tasks."""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
