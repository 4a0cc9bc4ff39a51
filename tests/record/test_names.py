"""The names by which the rooms call each other across the one loop."""

from controlplane import changes
from controlplane.celery import app


def test_the_wake_names_a_task_that_is_registered() -> None:
    app.loader.import_default_modules()
    assert changes.CYCLE_TASK in app.tasks


def test_everything_that_beats_is_registered_and_goes_to_a_queue_that_is_consumed() -> None:
    app.loader.import_default_modules()
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in app.tasks
    assert {route["queue"] for route in app.conf.task_routes.values()} | {app.conf.task_default_queue} == {
        "cycle",
        "questions",
        "slow",
    }
