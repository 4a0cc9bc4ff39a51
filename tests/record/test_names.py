"""The names by which the rooms call each other across the one loop."""

from controlplane import changes
from controlplane.celery import app


def test_what_is_asked_by_name_is_registered() -> None:
    app.loader.import_default_modules()
    assert {changes.CYCLE_TASK, changes.EXPLAIN_TASK, changes.SHADOW_TASK} <= set(app.tasks)
