"""What a Celery worker of the control plane does beside its tasks."""
