"""Beat in a thread of a worker. Celery's own ``--beat`` forks the worker for it, which takes as much memory again."""

from __future__ import annotations

from typing import Any

import click
from celery import Celery, bootsteps
from celery.beat import EmbeddedService

OPTION = click.Option(["--beat-thread"], is_flag=True, help="Send periodic tasks from a thread of this worker.")


class BeatThread(bootsteps.StartStopStep):
    """The step of a worker that runs beat, where ``--beat-thread`` asks for it."""

    requires = ("celery.worker.components:Pool",)
    conditional = True

    def __init__(self, worker: Any, beat_thread: bool = False, **options: Any) -> None:
        self.enabled = beat_thread
        super().__init__(worker, **options)

    def create(self, worker: Any) -> Any:
        """Return the thread; the worker starts and stops it."""
        return EmbeddedService(worker.app, thread=True, schedule_filename=worker.schedule_filename)


def offer(app: Celery) -> None:
    """Add the option and its step to the application's workers."""
    app.user_options["worker"].add(OPTION)
    app.steps["worker"].add(BeatThread)
