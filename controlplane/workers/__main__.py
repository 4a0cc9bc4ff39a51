"""``python -m controlplane.workers OPTION...``: ``celery --app controlplane --quiet worker OPTION...``, but without
importing Celery's other commands; the interactive shell alone needs as much memory as the worker's own tasks."""

from celery.bin.base import CLIContext
from celery.bin.worker import worker

from controlplane.celery import app

worker.params.extend(app.user_options["worker"])
worker.main(obj=CLIContext(app, no_color=True, workdir=None, quiet=True), prog_name="controlplane.workers")
