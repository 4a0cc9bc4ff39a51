"""Extensions of the control plane's Celery workers."""
